"""No input makes a parser slow: the work is linear in the input, whatever the input holds."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import pickle
import pkgutil
import re
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import three_walls
from tests.linear_work import assert_linear, cpu_seconds
from tests.pattern_attacks import attack_texts
from three_walls.lib.errors import InputError
from three_walls.lib.yaml import read_document, read_yaml
from three_walls.log.collect_log import Collector
from three_walls.log.read_log import read_text
from three_walls.megatron.settings.log_settings import read_printed
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.memory_snapshot.summarize_snapshot import read_memory_snapshot
from three_walls.step.operators import nest_operators, read_operator_text
from three_walls.tables.environment_variables import ValueForm
from three_walls.tables.kernel_names import match_kernel
from three_walls.trace.schemas import HOST_RANGES

pytestmark = [pytest.mark.slow, pytest.mark.attack]

# ---- every regular expression of the program ----------------------------------------------------------------------

_LENGTH = 6000
_SUSPECT_S = 0.003
"""A linear search of this length takes up to 2 ms (one of them 65), the fastest quadratic one 13 ms."""
_ATTEMPTS = 6
_MOST_TIMES = 2.5
"""For a text twice as long: linear work takes 2, quadratic 4."""
_MATCHED = {
    "prefixes": "match",
    "line": "match",
    "section": "match",
    "forms": "fullmatch",
    "names": "fullmatch",
    "patterns.key": "fullmatch",
    "list_of": "fullmatch",
    "timers": "fullmatch",
    "keys": "fullmatch",
}
"""Part of the place of a table's expression -> how it is used, where it is not searched."""
_FOREIGN = ("three_walls.bridge.real_bridge", "three_walls.capture.nsys_recipe.")
"""Modules for the Python of Megatron-Bridge or Nsight Systems; they use no expression."""
_SCRUB = ("three_walls.tables.shareable", "three_walls.capture.scrub")
"""tests/capture/scrub has the laws of these modules: their expressions are used on texts that were split before."""


def _modules() -> Iterator[types.ModuleType]:
    for info in pkgutil.walk_packages(three_walls.__path__, "three_walls."):
        if not info.name.endswith("__main__") and not info.name.startswith((*_FOREIGN, *_SCRUB)):
            yield importlib.import_module(info.name)


def _patterns_of_code() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """(place, expression, method) of the expressions that modules compile, and of those that they hand to ``re``."""
    for module in _modules():
        tree = ast.parse(inspect.getsource(module))
        methods: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                methods.setdefault(node.value.id, set()).add(node.attr)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and isinstance(node.args[0], ast.Constant)
                and node.func.attr != "compile"
            ):
                method = node.func.attr if node.func.attr in ("match", "fullmatch", "search") else "findall"
                yield f"{module.__name__}:{node.lineno}", re.compile(node.args[0].value), method
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                used = methods.get(name, set())
                method = next((wanted for wanted in ("fullmatch", "match", "search") if used == {wanted}), "findall")
                yield f"{module.__name__}:{name}", value, method


def _patterns_of_tables() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """(place, expression, method) of every expression in the tables."""
    for module in _modules():
        for name, load in vars(module).items():
            is_own = getattr(load, "__module__", "") == module.__name__ and not name.startswith("_")
            if is_own and hasattr(load, "cache_clear") and not inspect.signature(load).parameters:
                for place, pattern in _walk(load(), f"{module.__name__.rpartition('.')[2]}.{name}"):
                    steps = place.replace("[", ".").split(".")
                    method = next((used for part, used in _MATCHED.items() if part in steps or part in place), "search")
                    is_searched = steps[-2:-1] == ["secrets"] or steps[0] == "kernel_names"
                    yield place, pattern, "search" if is_searched else method


def _walk(value: object, place: str) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield place, value
    elif isinstance(value, ValueForm) and value.stated:
        yield f"{place}.{value.stated[0]}", value.expression
    elif is_dataclass(value):
        for part in fields(value):
            yield from _walk(getattr(value, part.name), f"{place}.{part.name}")
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _walk(key, f"{place}.key")
            yield from _walk(entry, f"{place}.{key if isinstance(key, str) else 'of-pattern'}")
    elif isinstance(value, Collection) and not isinstance(value, str | bytes):
        for index, entry in enumerate(value):
            yield from _walk(entry, f"{place}[{index}]")


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[Any], str], ...]:
    found = [*_patterns_of_code(), *_patterns_of_tables()]
    return tuple(
        {
            (pattern.pattern, pattern.flags, method): (place, pattern, method) for place, pattern, method in found
        }.values()
    )


def find_superlinear(pattern: re.Pattern[Any], method: str) -> str | None:
    """A text that takes ``pattern`` more than linear work, described; None where no attack finds one."""
    use: Callable[[Any], object] = getattr(pattern, method)
    is_bytes = isinstance(pattern.pattern, bytes)
    for short, long in zip(attack_texts(pattern, _LENGTH), attack_texts(pattern, 2 * _LENGTH), strict=True):
        small, large = (text.encode("utf-8", "replace") if is_bytes else text for text in (short, long))
        if cpu_seconds_of(use, small) < _SUSPECT_S:
            continue
        # The machine may change its pace at any time, so the short text is searched before and after the long one. More
        # than linear work shows in every attempt.
        ratios = []
        for _ in range(_ATTEMPTS):
            before, twice, after = (cpu_seconds(lambda: use(text), 2) for text in (small, large, small))  # noqa: B023
            ratios.append(2 * twice / (before + after))
            if ratios[-1] <= _MOST_TIMES:
                break
        else:
            return f"{min(ratios):.1f} times the work for twice of {short[:60]!r}..."
    return None


def cpu_seconds_of(use: Callable[[Any], object], text: object) -> float:
    """The CPU time of one use; of the shorter of two where that is much."""
    begin = time.process_time()
    use(text)
    spent = time.process_time() - begin
    if spent < _SUSPECT_S:
        return spent
    begin = time.process_time()
    use(text)
    return min(spent, time.process_time() - begin)


def test_no_expression_of_the_program_takes_more_than_linear_work() -> None:
    found = {place: find_superlinear(pattern, method) for place, pattern, method in _patterns()}
    assert {place: text for place, text in found.items() if text} == {}


def test_every_kind_of_expression_is_attacked() -> None:
    places = [place for place, *_ in _patterns()]
    assert len(places) > 200
    for part in ("load_kernel_packs", "log_grammar", "allocation_stacks", "allowed_variables", "log.read_lines"):
        assert any(part in place for place in places), part


@pytest.mark.parametrize(
    ("expression", "method"),
    [
        (r"nccl\w*Kernel", "search"),
        (r"(?:(\d+)|No) graphable layers", "search"),
        (r"^torch==(\d+\.\d+[A-Za-z0-9.+]*)$", "fullmatch"),
    ],
)
def test_an_attack_finds_expressions_that_take_more(expression: str, method: str) -> None:
    """Another process may disturb one comparison, so it is repeated, as in assert_linear."""
    pattern = re.compile(expression)
    assert any(find_superlinear(pattern, method) for _ in range(5))


def test_an_attack_finds_nothing_where_the_work_is_linear() -> None:
    pattern = re.compile(r"nccl[A-Z]{1,40}Kernel")
    assert not any(find_superlinear(pattern, "search") for _ in range(5))


# ---- parsers ------------------------------------------------------------------------------------------------------


def _read_log(text: bytes) -> None:
    read_text([text[at : at + (1 << 20)] for at in range(0, len(text), 1 << 20)], Collector(), "log")


LINE = 15_000  # below limits.MOST_LINE_BYTES
LOGS: dict[str, Callable[[int], bytes]] = {
    "one line full of a short anchor": lambda n: b"EP is " * n,
    "lines full of a short anchor": lambda n: (b"EP is " * (LINE // 6) + b"\n") * (n // 1000 + 1),
    "long numbers before an anchor": lambda n: (b"1" * LINE + b" graphable layers x\n") * (n // 1000 + 1),
    "layers": lambda n: (b"graphable layers " + b"1" * LINE + b"\n") * (n // 1000 + 1),
    "versions": lambda n: (b"torch==2." + b"0" * LINE + b"!\n") * (n // 1000 + 1),
    "prefixes": lambda n: (b"[a0]:" * (LINE // 5) + b"iteration | consumed samples:\n") * (n // 1000 + 1),
    "hosts": lambda n: (b"a0" * (LINE // 2) + b" | consumed samples:\n") * (n // 1000 + 1),
    "memory lines in one": lambda n: (b"[Rank 0] a memory (MB) |.00 " * (LINE // 28) + b"x\n") * (n // 1000 + 1),
    "defaults": lambda n: (
        b"Configuration Summary (Non-Default Values vs Megatron Core)\n[model]:\n"
        + (b"  a: b" + b"  (Mcore default: " * (LINE // 20) + b"\n") * (n // 1000 + 1)
    ),
    "a block of every process": lambda n: b"".join(b"[rank%d]:Final configuration:\n" % i for i in range(n)),
    "settings of every process, in turns": lambda n: b"".join(
        [
            *(b"[rank%d]:---------------- arguments ----------------\n" % i for i in range(n // 4)),
            *(b"[rank%d]:  name ...................... value\n" % i for i in range(n // 4)),
        ]
    ),
    "timers of every process": lambda n: b"".join(
        b"[rank%d]:times across ranks (ms):\n  a:\n" % (i % 5000) for i in range(n)
    ),
    "tracebacks": lambda n: b'Traceback (most recent call last):\n  File "' + b"/megatron/core/a" * (n // 8) + b"\n",
    "terminal codes": lambda n: b"\x1b]0;" * n + b"\x1b[" + b"0" * n + b" EP is \n",
    "objects": lambda n: (
        (b"Setting up DistributedDataParallel with config DistributedDataParallelConfig(" * (LINE // 80) + b")\nx\n")
        * (n // 1000 + 1)
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_takes_linear_work(name: str) -> None:
    assert_linear(LOGS[name], _read_log, start=2_000, most=128_000)


NAMES = (
    "ncclKernel",
    "ncclKernel_",
    "cutlass_tensorop_",
    "scaled_softmax",
    "deep_ep::a::",
    "sm0_a",
    "permute_",
    "chunk_fwd_",
    "nccl_ep_jit_",
    "deep_gemm::a<",
    "transformer_engine::",
    "~/a:",
)


@pytest.mark.parametrize("part", NAMES)
def test_a_name_of_a_kernel_takes_linear_work(part: str) -> None:
    match = match_kernel.__wrapped__  # without its cache
    assert_linear(lambda n: part * (n // len(part)), match, start=1_000, most=64_000)


TEXTS: dict[str, Callable[[int], str]] = {
    "sizes": lambda n: "aten::mm, sizes = [" + "[1, 2], " * n,
    "nested sizes": lambda n: "aten::mm, sizes = " + "[" * n,
    "many sizes": lambda n: "aten::mm" + ", sizes = [[1" * n,
    "sequences": lambda n: "aten::mm, seq = 1" + ", seq = " * n,
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_range_takes_linear_work(name: str) -> None:
    assert_linear(TEXTS[name], read_operator_text, start=1_000, most=64_000)


def _ranges(n: int, ends: Callable[[int], int | None]) -> pl.DataFrame:
    rows = [(1, 1, at, ends(at), "aten::mm") for at in range(n)]
    schema = {name: HOST_RANGES[name] for name in ("process", "thread", "start_ns", "end_ns", "text")}
    return pl.DataFrame(rows, schema=schema, orient="row").match_to_schema(HOST_RANGES, missing_columns="insert")


@pytest.mark.parametrize(
    "ends", [lambda at: 2_000_000 + at, lambda at: 2_000_000 - at, lambda _: None], ids=["overlap", "nest", "open"]
)
def test_ranges_that_overlap_take_linear_work(ends: Callable[[int], int | None]) -> None:
    def visit(ranges: pl.DataFrame) -> int:
        operators = nest_operators(ranges)
        return sum(len(list(operators.around(operators.innermost(1, at)))) for at in range(ranges.height))

    assert_linear(lambda n: _ranges(n, ends), visit, start=500, most=8_000)


def _snapshot(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    segment = {"device": 0, "address": 1, "total_size": 1, "blocks": blocks}
    return {"segments": [segment], "device_traces": [[]]}


def _block(frames: object) -> dict[str, Any]:
    return {"size": 1, "state": "active_allocated", "frames": frames}


def _blocks_that_share_a_stack(n: int) -> bytes:
    stack = [{"name": "a", "filename": "/a.py"}] * n
    return pickle.dumps(_snapshot([_block(stack) for _ in range(n)]))


def _stacks_that_share_texts(n: int) -> bytes:
    name, file = "a" * n, "/a" * n
    return pickle.dumps(_snapshot([_block([{"name": name, "filename": file}]) for _ in range(n)]))


def _key_of_one_hash(number: int) -> bytes:
    """A multiple of Python's modulus of hashes, and None."""
    return b"\x8a\x0b" + (number * (2**61 - 1)).to_bytes(11, "little") + b"N"


SNAPSHOTS: dict[str, Callable[[int], bytes]] = {
    "blocks that share a stack": _blocks_that_share_a_stack,
    "stacks that share texts": _stacks_that_share_texts,
    "keys of one hash": lambda n: b"\x80\x04}(" + b"".join(map(_key_of_one_hash, range(n))) + b"u.",
    "keys that are tuples": lambda n: pickle.dumps({(k, k): 0 for k in range(n)}),
    "segments that share their blocks": lambda n: pickle.dumps({"segments": [_snapshot([_block(None)] * n)] * n}),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_takes_linear_work(name: str, tmp_path: Path) -> None:
    def write(n: int) -> Path:
        path = tmp_path / f"{n}.pickle"
        path.write_bytes(SNAPSHOTS[name](n))
        return path

    def read(path: Path) -> None:
        with contextlib.suppress(InputError):
            read_memory_snapshot(path)

    assert_linear(write, read, start=500, most=16_000)


DOCUMENTS: dict[str, Callable[[int], str]] = {
    "keys": lambda n: "".join(f"k{i}: {i}\n" for i in range(n)),
    "tags": lambda n: "".join(f"- !t {i}\n" for i in range(n)),
    "brackets": lambda n: "[" * n,
    "aliases": lambda n: "a: &a [1]\nb: [" + "*a, " * n + "]\n",
    "a long number": lambda n: "a: " + "1" * n + "_\n",
    "a long key": lambda n: "k" * n + ": 1\n",
    "a long text": lambda n: 'a: "' + "\\e" * n + '"\n',
    "indents": lambda n: "".join(" " * (i % 39) + f"k{i}:\n" for i in range(n)),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_rule_file_takes_linear_work(name: str, tmp_path: Path) -> None:
    def write(n: int) -> Path:
        path = tmp_path / f"{n}.yaml"
        path.write_text(DOCUMENTS[name](n))
        return path

    def read(path: Path) -> list[str]:
        problems: list[Any] = []
        read_document(path, problems)
        return list(map(str, problems))

    assert_linear(write, read, start=500, most=64_000)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_configuration_takes_linear_work(name: str) -> None:
    def read(text: str) -> None:
        with contextlib.suppress(ValueError):
            read_yaml(text)

    assert_linear(DOCUMENTS[name], read, start=500, most=64_000)


COMMAND_LINES: dict[str, Callable[[int], list[str]]] = {
    "words": lambda n: ["python", "run_recipe.py", *["model.a=1"] * n],
    "flags": lambda n: ["python", "pretrain_gpt.py", *["--num-layers", "1"] * n],
    "a nested value": lambda n: ["python", "run_recipe.py", "a=" + "{a:" * n + "}" * n],
    "a value of many parts": lambda n: ["python", "run_recipe.py", "a={" + "b" * n + ":{" + "c:1," * n + "}}"],
    "a shell's string": lambda n: ["bash", "-c", "python run_recipe.py " + "a=1 " * n],
    "a shell's long word": lambda n: ["bash", "-c", "python run_recipe.py a=" + "1" * n],
    "a long path": lambda n: ["python", "run_recipe.py", "a" + ".a" * n],
    "a long number": lambda n: ["python", "run_recipe.py", "model.num_layers=" + "1" * n],
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_command_line_takes_linear_work(name: str) -> None:
    assert_linear(COMMAND_LINES[name], read_command_line, start=500, most=64_000)


PRINTED: dict[str, Callable[[int], str]] = {
    "a number": lambda n: "1" * n,
    "a list": lambda n: "[" + "1, " * n + "]",
    "brackets": lambda n: "[" * n + "]",
    "signs": lambda n: "-" * n + "1",
    "quotes": lambda n: "'" * n,
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_printed_value_takes_linear_work(name: str) -> None:
    assert_linear(PRINTED[name], read_printed, start=500, most=16_000)
