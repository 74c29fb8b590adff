"""Our checker against Megatron-Bridge on seeded sets of overrides: how many it catches, how many it refuses wrongly.

    python -m tests.bridge.differential --bridge 0.6.2=<python>:<folder>[:<folder>] --seed 1 --cases 1000

``--bridge`` names a release, the interpreter that has Megatron-Bridge's dependencies, and folders to put on its path
(``make test-bridge`` builds them). Each release runs in one process. ``--answers`` is a folder that keeps the answers
of Megatron-Bridge, so that a second run asks the checker alone.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.bridge.override_cases import OverrideCase, make_cases
from tests.bridge.releases import Bridge, read_bridge
from three_walls.bridge.check_overrides import OverrideCheck, check_overrides
from three_walls.bridge.merged_config import MergedConfig, config_of_paths, config_of_sections
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
    ),
}
"""Recipes of MoE models, and a dense one with a userbuffers preset, with their GPUs, from this release on."""
NOT_LOADED = ("0.4.2",)
"""Releases that cannot load the configuration that they saved: 0.4.2 refuses to make train.exit_signal."""
PLATFORM: dict[str, Any] = {
    "transformer_engine": 2014,
    "torch": 2015,
    "gpu_major": 9,
    "gpu_name": "NVIDIA H100 80GB HBM3",
}


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


def compare(bridge: Bridge, seed: int, count: int, answers: Path | None = None) -> Agreement:
    """The outcomes of ``count`` cases of ``seed``; ``answers`` is a folder of what Bridge answered before."""
    kept = answers / f"{bridge.release}-{seed}-{count}.json" if answers is not None else None
    if kept is not None and kept.is_file():
        answer = json.loads(kept.read_text(encoding="utf-8"))
    else:
        answer = ask(bridge, make_cases(bridge.release, seed, count, len(bases_of(bridge.release))))
        if kept is not None:
            kept.write_text(json.dumps(answer), encoding="utf-8")
    return Agreement(bridge.release, tuple(_judge(bridge.release, answer)))


def ask(bridge: Bridge, cases: Sequence[OverrideCase]) -> dict[str, Any]:
    """What one process of Megatron-Bridge makes of the base configurations, as paths to values, and of the cases."""
    with tempfile.TemporaryDirectory() as folder:
        bases = [_base_request(base, Path(folder)) for base in bases_of(bridge.release)]
        asked = [{**bases[case.base], "overrides": list(case.overrides), "alone": False} for case in cases]
        results = bridge.ask([*({**base, "dump": True} for base in bases), *asked])
    for base, result in zip(bases, results, strict=False):
        assert "dump" in result, f"{base}: {result['message']}"
    return {
        "dumps": [result["dump"] for result in results[: len(bases)]],
        "cases": [[case.kind, case.base, list(case.overrides)] for case in cases],
        "messages": ["" if result["validated"] else result["message"] for result in results[len(bases) :]],
    }


@cache
def bases_of(release: str) -> tuple[tuple[str, int], ...]:
    """Recipes and saved configurations of a release, with the GPUs that they run on."""
    recipes = RECIPES["0.6.2" if release.startswith("0.6") else "0.3.1"]
    saved = [path for path in (RUNS / release).glob("run_config.yaml.xz") if release not in NOT_LOADED]
    return (*recipes, *((str(path), _gpus_of(path)) for path in saved))


def _gpus_of(path: Path) -> int:
    model = _read_saved(path)["model"]
    return max(8, int(model["tensor_model_parallel_size"]) * int(model["pipeline_model_parallel_size"]))


@cache
def _read_saved(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(lzma.decompress(path.read_bytes()).decode())
    return found


def _base_request(base: tuple[str, int], folder: Path) -> dict[str, Any]:
    name, gpus = base
    if not name.endswith(".xz"):
        return {"recipe": name, "world_size": gpus}
    copy = folder / f"{Path(name).parent.name}-{Path(name).stem}"
    copy.write_bytes(lzma.decompress(Path(name).read_bytes()))
    return {"config": str(copy), "world_size": gpus}


def _judge(release: str, answer: dict[str, Any]) -> Iterator[Outcome]:
    configurations = list(_configurations(release, answer["dumps"]))
    names = [Path(name).name for name, _ in bases_of(release)]
    for (kind, base, overrides), message in zip(answer["cases"], answer["messages"], strict=True):
        check = check_overrides(overrides, configurations[base], release)
        case = OverrideCase(kind, base, tuple(overrides))
        yield Outcome(case, names[base], not message, message, check)


def _configurations(release: str, dumps: Iterable[dict[str, Any]]) -> Iterator[MergedConfig]:
    for (name, gpus), dump in zip(bases_of(release), dumps, strict=True):
        config = config_of_sections(_read_saved(Path(name))) if name.endswith(".xz") else config_of_paths(dump)
        yield replace(config, environment_is_known=True, platform={**PLATFORM, "world_size": gpus})


def describe(agreements: Sequence[Agreement], seed: int, shown: int = 0) -> str:
    """A table of all releases, and ``shown`` examples per message of what the checker gets wrong."""
    lines = [
        f"seed {seed}",
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
                yield f"        {outcome.base}: {'  '.join(outcome.case.overrides)}{answer}"


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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--examples", type=int, default=0)
    options = parser.parse_args(arguments)
    agreements = [compare(bridge, options.seed, options.cases, options.answers) for bridge in options.bridge]
    sys.stdout.write(describe(agreements, options.seed, options.examples) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
