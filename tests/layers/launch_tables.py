"""Launches of a rank as small text tables, each row with the labels that it must get.

A row is a kernel's category (attention has its direction: ``attention>`` goes forward, ``attention<`` back), the stream
if it is not the one that computes, then module and part; ``-`` is none. A step is a list of such passes in the order in
which the host launches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from three_walls.layers.label_operations import label_operations
from three_walls.layers.labels import LABELS, LabelledOperations
from three_walls.megatron.settings.run_config import ConfigData, ConfigValue, RunConfig
from three_walls.step.operators import EVALUATES, Operators, nest_operators
from three_walls.trace.schemas import HOST_RANGES

MAIN, AUTOGRAD = 1, 2
_PHASES = {">": "forward", "<": "backward"}
_LAUNCH_NS = 10

Range = tuple[str, int, int]
"""Text of a range on a thread, and the first and last pass of the step that it is around."""


class Pass(NamedTuple):
    """What the host launches in one go."""

    table: str
    direction: str | None
    layer: int | None = None
    micro_batch: int | None = None
    thread: int | None = MAIN


def forward(table: str, layer: int | None, micro_batch: int | None = 0) -> Pass:
    return Pass(table, "forward", layer, micro_batch)


def backward(table: str, layer: int | None, micro_batch: int | None = 0) -> Pass:
    return Pass(table, "backward", layer, micro_batch, AUTOGRAD)


def replay(table: str, layer: int | None, micro_batch: int | None = 0) -> Pass:
    return Pass(table, "recompute", layer, micro_batch, AUTOGRAD)


def in_one_thread(passes: Sequence[Pass], thread: int | None = MAIN) -> list[Pass]:
    return [each._replace(thread=thread) for each in passes]


def read_rows(table: str) -> list[tuple[str, int, str | None, str | None]]:
    """Kernel, stream, module and part of each row."""
    rows = []
    for line in filter(str.strip, table.splitlines()):
        words = [None if word == "-" else word for word in line.split()]
        kernel = str(words.pop(0))
        stream = int(str(words.pop(0))) if words and str(words[0]).isdigit() else 7
        module, part, *_ = (*words, None, None)
        rows.append((kernel, stream, module, part))
    return rows


def settings(world_size: int | None = None, **values: ConfigData) -> RunConfig:
    """``world_size``: what the run itself calculated, with which the batch sizes tell its micro-batches."""
    stated = {key: ConfigValue(value, "test") for key, value in values.items()}
    return RunConfig(stated, sizes={} if world_size is None else {"world_size": ConfigValue(world_size, "test")})


def label(
    passes: Sequence[Pass], config: RunConfig | None = None, ranges: Sequence[Range] = (), nodes: Sequence[int] = ()
) -> LabelledOperations:
    """The labelled launches of a step, with what each must get in columns ``expected_...``.

    ``nodes``: passes of which each launch is inside a range of autograd of its own.
    """
    rows = []
    bounds = []
    for each in passes:
        begin = len(rows)
        for kernel, stream, module, part in read_rows(each.table):
            at = len(rows) * _LAUNCH_NS
            expected = (module, part, each.direction, each.layer, each.micro_batch)
            rows.append((kernel.rstrip("<>"), _PHASES.get(kernel[-1]), stream, each.thread, at, *expected))
        bounds.append((begin, len(rows)))
    names = ("category", "phase", "stream", "launch_thread", "launch_start_ns")
    labelled = [f"expected_{name}" for name in ("module", "part", "direction", "layer", "micro_batch")]
    types = (pl.String, pl.String, *[pl.Int64] * 3, *[pl.String] * 3, *[pl.Int64] * 2)
    schema = dict(zip((*names, *labelled), types, strict=True))
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        start_ns=pl.col("launch_start_ns") + 5,
        end_ns=pl.col("launch_start_ns") + 9,
        name_id=pl.lit(None, dtype=pl.Int64),
        graph_node=pl.lit(None, dtype=pl.Int64),
        kind=pl.lit("kernel"),
        **{name: pl.lit(None, dtype=LABELS[name]) for name in ("operator", "fused_kernel", "operator_range")},
    )
    texts = [
        (passes[first].thread, bounds[first][0] * _LAUNCH_NS - 2, bounds[last][1] * _LAUNCH_NS - 3, text)
        for text, first, last in ranges
    ]
    for number in nodes:
        texts += [
            (passes[number].thread, at * _LAUNCH_NS - 1, at * _LAUNCH_NS + 5, f"{EVALUATES}MulBackward0")
            for at in range(*bounds[number])
        ]
    return label_operations(frame, {}, _nest(texts), config or settings())


def _nest(texts: Sequence[tuple[int | None, int, int, str]]) -> Operators:
    ranges = pl.DataFrame(
        [{"thread": thread, "start_ns": start, "end_ns": end, "text": text} for thread, start, end, text in texts],
        schema={name: HOST_RANGES[name] for name in ("thread", "start_ns", "end_ns", "text")},
    )
    return nest_operators(ranges.sort("thread", "start_ns", pl.col("end_ns").neg()))


def differences(found: LabelledOperations) -> list[dict[str, object]]:
    """Rows whose labels are not those of the table."""
    columns = ("module", "part", "direction", "layer", "micro_batch")
    is_wrong = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"expected_{name}")) for name in columns)
    shown = ("category", *columns, *(f"expected_{name}" for name in columns))
    return found.with_row_index("row").filter(is_wrong).select("row", *shown).rows(named=True)
