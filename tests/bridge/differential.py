"""Our checker against Megatron-Bridge on seeded sets of overrides: how many it catches, how many it refuses wrongly.

    python -m tests.bridge.differential --bridge 0.6.2=<python>:<folder>[:<folder>] --generator sessions --seed 1

``--bridge`` names a release, the interpreter that has Megatron-Bridge's dependencies, and folders to put on its path
(``make test-bridge`` builds them). Each release runs in one process. ``--answers`` is a folder that keeps
the answers of Megatron-Bridge, so that a second run asks the checker alone. A base that Megatron-Bridge refuses without
any override is out of the count.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.bridge.flip_cases import make_flips
from tests.bridge.override_cases import Machine, OverrideCase, make_cases
from tests.bridge.releases import Bridge, read_bridge
from tests.bridge.session_cases import make_sessions
from three_walls.bridge.check_overrides import OverrideCheck, check_overrides
from three_walls.bridge.merged_config import config_of_paths, config_of_sections
from three_walls.lib.yaml import read_yaml

HERE = Path(__file__).parent
RUNS = HERE.parent / "bridge_runs"
RECIPES = {
    "0.3.1": (
        ("qwen3_30b_a3b_pretrain_config", 8),
        ("qwen3_235b_a22b_pretrain_config", 512),
        ("deepseek_v3_pretrain_config", 1024),
        ("gpt_oss_20b_pretrain_config", 16),
        ("olmoe_7b_pretrain_config", 8),
        ("nemotron_3_nano_pretrain_config", 8),
        ("gpt3_175b_pretrain_config", 64),
        ("qwen3_30b_a3b_sft_config", 8),
        ("olmoe_7b_peft_config", 8),
    ),
    "0.6.2": (
        ("qwen3_30b_a3b_pretrain_config", 8),
        ("qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config", 16),
        ("qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config", 256),
        ("deepseek_v3_pretrain_1024gpu_h100_bf16_config", 1024),
        ("gpt_oss_20b_pretrain_16gpu_h100_bf16_config", 16),
        ("glm45_air_106b_pretrain_32gpu_h100_bf16_config", 32),
        ("olmoe_7b_pretrain_8gpu_h100_bf16_config", 8),
        ("nemotron_3_nano_pretrain_8gpu_h100_bf16_config", 8),
        ("gpt3_175b_pretrain_32gpu_h100_bf16_config", 64),
        ("qwen3_30b_a3b_sft_16gpu_h100_bf16_config", 16),
        ("olmoe_7b_peft_1gpu_h100_bf16_config", 8),
    ),
}
"""Recipes of MoE models and a dense one with a userbuffers preset, with their GPUs, from this release on.

The last two are of fine-tuning.
"""
PREPARED = {
    "gpt3_175b_pretrain": ("cfg.model.gradient_accumulation_fusion = True",),
    "olmoe_7b_peft": ("cfg.checkpoint.pretrained_checkpoint = '/'",),
}
"""By the beginning of a recipe's name: the kernels that it looks for, and the checkpoint that its user has to name."""
NOT_LOADED = ("0.4.2",)
"""Releases that cannot load the configuration that they saved: 0.4.2 refuses to make train.exit_signal."""
TORCH = 2015
"""PyTorch's release, as constraints compare it: a newer one than any that they name."""
GENERATORS: dict[str, Callable[[str, int, int, int], list[OverrideCase]]] = {
    "settings": make_cases,
    "sessions": make_sessions,
    "flips": make_flips,
}
"""Who makes the cases of a release and a seed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What Bridge and the checker did with one case."""

    case: OverrideCase
    base: str
    is_accepted: bool
    message: str
    """Bridge's; empty where it accepts."""
    check: OverrideCheck


@dataclass(frozen=True, slots=True)
class Agreement:
    """All outcomes of one release."""

    release: str
    outcomes: tuple[Outcome, ...]

    def select(self, is_accepted: bool, *answers: bool | None) -> list[Outcome]:
        """Cases that Bridge accepts (or refuses) and for which the checker gives one of ``answers``."""
        return [
            outcome
            for outcome in self.outcomes
            if outcome.is_accepted is is_accepted and outcome.check.is_accepted in answers
        ]

    @property
    def caught_fraction(self) -> float:
        """Of what Bridge refuses, what the checker refuses too; an unknown answer does not count."""
        refused = self.select(False, True, False, None)
        return len(self.select(False, False)) / len(refused) if refused else 1.0

    @property
    def wrongly_refused_fraction(self) -> float:
        """Of what Bridge accepts, what the checker refuses."""
        accepted = self.select(True, True, False, None)
        return len(self.select(True, False)) / len(accepted) if accepted else 0.0

    @property
    def unknown_fraction(self) -> float:
        """Of all cases, those that the checker does not decide."""
        unknown = self.select(True, None) + self.select(False, None)
        return len(unknown) / len(self.outcomes)


def compare(bridge: Bridge, generator: str, seed: int, count: int, answers: Path | None = None) -> Agreement:
    """The outcomes of ``count`` cases of ``seed``; ``answers`` is a folder of what Bridge answered before."""
    cases = GENERATORS[generator](bridge.release, seed, count, len(bases_of(bridge.release)))
    kept = answers / f"{bridge.release}-{generator}-{seed}-{count}.json" if answers is not None else None
    if kept is not None and kept.is_file():
        answer = json.loads(kept.read_text(encoding="utf-8"))
        assert answer["cases"] == _as_data(cases), f"{kept} holds the answers to other cases: delete it"
    else:
        answer = ask(bridge, cases)
        if kept is not None:
            kept.write_text(json.dumps(answer), encoding="utf-8")
    return Agreement(bridge.release, tuple(_judge(bridge.release, cases, answer)))


def ask(bridge: Bridge, cases: Sequence[OverrideCase]) -> dict[str, Any]:
    """What one process of Megatron-Bridge makes of the bases, as paths to values, and of the cases.

    Every base is made on the default machine. None for a case whose base alone is refused on the case's machine.
    """
    places = sorted({(case.base, case.machine) for case in cases}, key=str)
    with tempfile.TemporaryDirectory() as folder:
        bases = [_base_request(base, Path(folder)) for base in bases_of(bridge.release)]
        dumped = [{**base, "dump": True} for base in bases]
        alone = [{**bases[base], **_machine_request(machine)} for base, machine in places]
        asked = [{**bases[case.base], **_case_request(case)} for case in cases]
        results = bridge.ask([*dumped, *alone, *asked])
    runs = {place: result["validated"] for place, result in zip(places, results[len(bases) :], strict=False)}
    messages = [
        ("" if result["validated"] else result["message"]) if runs[case.base, case.machine] else None
        for case, result in zip(cases, results[len(bases) + len(places) :], strict=True)
    ]
    return {
        "dumps": [result["dump"] for result in results[: len(bases)]],
        "cases": _as_data(cases),
        "messages": messages,
    }


def _machine_request(machine: Machine) -> dict[str, Any]:
    major, minor = machine.capability
    engine = machine.transformer_engine
    return {"gpu_name": machine.gpu, "gpu_major": major, "gpu_minor": minor, "transformer_engine": engine}


def _case_request(case: OverrideCase) -> dict[str, Any]:
    overrides = {"overrides": list(case.overrides), "environment": dict(case.environment), "alone": False}
    return {**overrides, **_machine_request(case.machine)}


def _as_data(cases: Sequence[OverrideCase]) -> Any:
    return json.loads(json.dumps([asdict(case) for case in cases]))


@cache
def bases_of(release: str) -> tuple[tuple[str, int], ...]:
    """Recipes and saved configurations of a release, with the GPUs that they run on."""
    recipes = RECIPES["0.6.2" if release.startswith("0.6") else "0.3.1"]
    saved = [path for path in (RUNS / release).glob("run_config.yaml.xz") if release not in NOT_LOADED]
    return (*recipes, *((str(path), _gpus_of(path)) for path in saved))


def _gpus_of(path: Path) -> int:
    """GPUs with which each copy of the model has one micro-batch a step."""
    model, train = (_read_saved(path)[section] for section in ("model", "train"))
    copy = (model[f"{kind}_parallel_size"] for kind in ("tensor_model", "pipeline_model", "context"))
    return math.prod(copy) * int(train["global_batch_size"]) // int(train["micro_batch_size"])


@cache
def _read_saved(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(lzma.decompress(path.read_bytes()).decode())
    return found


def _base_request(base: tuple[str, int], folder: Path) -> dict[str, Any]:
    name, gpus = base
    if not name.endswith(".xz"):
        prepare = next((lines for beginning, lines in PREPARED.items() if name.startswith(beginning)), ())
        return {"recipe": name, "world_size": gpus, "prepare": prepare}
    copy = folder / f"{Path(name).parent.name}-{Path(name).stem}"
    copy.write_bytes(lzma.decompress(Path(name).read_bytes()))
    return {"config": str(copy), "world_size": gpus}


def _judge(release: str, cases: Sequence[OverrideCase], answer: dict[str, Any]) -> Iterator[Outcome]:
    names = [Path(name).name for name, _ in bases_of(release)]
    configurations = [
        config_of_sections(_read_saved(Path(name))) if name.endswith(".xz") else config_of_paths(dump)
        for (name, _), dump in zip(bases_of(release), answer["dumps"], strict=True)
    ]
    for case, message in zip(cases, answer["messages"], strict=True):
        if message is not None:
            platform = _platform(case.machine, bases_of(release)[case.base][1])
            base = replace(configurations[case.base], environment_is_known=True, platform=platform)
            check = check_overrides(case.overrides, base, release, case.environment)
            yield Outcome(case, names[case.base], not message, message, check)


class _PathsHere:
    """Megatron-Bridge runs on this machine."""

    def __contains__(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110 - as it asks: an empty path is none


def _platform(machine: Machine, gpus: int) -> dict[str, Any]:
    major, minor = machine.transformer_engine.split(".")[:2]
    gpu_major, gpu_minor = machine.capability
    return {
        "transformer_engine": 1000 * int(major) + int(minor),
        "torch": TORCH,
        "gpu_sm": 10 * gpu_major + gpu_minor,
        "gpu_name": machine.gpu,
        "world_size": gpus,
        "paths": _PathsHere(),
    }


def describe(agreements: Sequence[Agreement], title: str, shown: int = 0) -> str:
    """A table of all releases, and ``shown`` examples per message of what the checker gets wrong."""
    lines = [
        title,
        f"{'release':8}{'cases':>7}{'refused':>9}{'caught':>8}{'%':>7}"
        f"{'accepted':>10}{'wrongly':>9}{'%':>7}{'unknown %':>11}",
    ]
    for agreement in agreements:
        refused, accepted = agreement.select(False, True, False, None), agreement.select(True, True, False, None)
        lines.append(
            f"{agreement.release:8}{len(agreement.outcomes):7}{len(refused):9}{len(agreement.select(False, False)):8}"
            f"{100 * agreement.caught_fraction:7.1f}{len(accepted):10}{len(agreement.select(True, False)):9}"
            f"{100 * agreement.wrongly_refused_fraction:7.1f}{100 * agreement.unknown_fraction:11.1f}"
        )
        for kind in sorted({outcome.case.kind for outcome in agreement.outcomes}):
            part = Agreement(kind, tuple(outcome for outcome in agreement.outcomes if outcome.case.kind == kind))
            lines.append(
                f"  {kind:14}{len(part.outcomes):5} cases, caught {100 * part.caught_fraction:5.1f}%, "
                f"wrongly refused {100 * part.wrongly_refused_fraction:5.1f}%"
            )
    if shown:
        for agreement in agreements:
            lines += _describe_examples(agreement, shown)
    return "\n".join(lines)


def _describe_examples(agreement: Agreement, shown: int) -> Iterator[str]:
    missed, wrong = agreement.select(False, True, None), agreement.select(True, False)
    for title, outcomes in (("not caught", missed), ("wrongly refused", wrong)):
        by_message: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            by_message[_shorten(outcome)].append(outcome)
        yield f"\n{agreement.release}: {title}"
        for message, group in sorted(by_message.items(), key=lambda item: (-len(item[1]), item[0])):
            yield f"{len(group):4} {message}"
            for outcome in sorted(group, key=lambda outcome: len(outcome.case.overrides))[:shown]:
                answer = "" if outcome.check.is_accepted is not None else " [unknown]"
                variables = "".join(f"  {name}={value}" for name, value in outcome.case.environment.items())
                yield f"        {outcome.base}: {'  '.join(outcome.case.overrides)}{variables}{answer}"


def _shorten(outcome: Outcome) -> str:
    """Bridge's message without its numbers; the checker's where Bridge accepts."""
    if not outcome.is_accepted:
        return re.sub(r"\d+", "N", outcome.message)[:170]
    check = outcome.check
    failing = [entry.message for entry in check.overrides if entry.failure_mode == "refused"]
    return re.sub(r"\d+", "N", "; ".join([*failing, *(f"{note.name}: {note.text}" for note in check.broken)]))[:170]


def main(arguments: Sequence[str]) -> None:
    """Print the table of every ``--bridge``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bridge", action="append", type=read_bridge, required=True)
    parser.add_argument("--generator", choices=sorted(GENERATORS), default="settings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--examples", type=int, default=0)
    options = parser.parse_args(arguments)
    agreements = [
        compare(bridge, options.generator, options.seed, options.cases, options.answers) for bridge in options.bridge
    ]
    sys.stdout.write(describe(agreements, f"{options.generator}, seed {options.seed}", options.examples) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
