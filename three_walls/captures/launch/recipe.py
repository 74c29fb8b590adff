"""From a setup to the commands that capture it, export it and analyze it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from three_walls.captures.launch.commands import SRUN, find_launcher, report_name, spell_settings, wrap
from three_walls.model.capture import CaptureRecipe, CaptureStep
from three_walls.model.config import ConfigData
from three_walls.model.errors import UsageError
from three_walls.tables.capture import BRIDGE, FRAMEWORKS, NsysOption, capture_rules

_EXAMPLES = {
    ("torchrun", "bridge"): "torchrun --nproc-per-node 8 run_recipe.py --recipe RECIPE",
    ("torchrun", "megatron-lm"): "torchrun --nproc-per-node 8 pretrain_gpt.py",
    ("srun", "bridge"): "srun python run_recipe.py --recipe RECIPE",
    ("srun", "megatron-lm"): "srun python pretrain_gpt.py",
}
_MOST_RANKS = 65536


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What to capture. ``first_step`` is the first profiled step, ``end_step`` the first one that is not."""

    launcher: str
    framework: str
    first_step: int
    end_step: int
    ranks: tuple[int, ...]
    graphs: bool = False
    memory: bool = False
    command: tuple[str, ...] = ()


def read_steps(text: str) -> tuple[int, int]:
    """``10-14``: steps 10 to 13 are profiled, four of them. Raises UsageError for fewer than the rules' minimum."""
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None:
        raise UsageError(f"--steps: expected two numbers like 10-14, found {text}")
    first, end = int(match[1]), int(match[2])
    least = capture_rules().minimum_steps
    if end - first < least:
        raise UsageError(
            f"--steps: expected at least {least} steps (the first contains the profiler's start, the last its stop), "
            f"found {max(0, end - first)} in {text}"
        )
    return first, end


def read_ranks(text: str) -> tuple[int, ...]:
    """``0-3,8``: ranks 0, 1, 2, 3 and 8."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None:
            raise UsageError(f"--ranks: expected numbers and ranges like 0-7,16, found {text}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > _MOST_RANKS:
            raise UsageError(f"--ranks: expected a range that goes up to at most {_MOST_RANKS}, found {part.strip()}")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def profiler_words(launcher: str, memory: bool) -> tuple[str, ...]:
    """``nsys profile`` with its options, for a shell."""
    options = [row.option for row in _select_options(memory)]
    return ("nsys", "profile", *options, "-o", shlex.quote(report_name(launcher)))


def _select_options(memory: bool) -> list[NsysOption]:
    return [row for row in capture_rules().nsys if row.when == "always" or memory]


def make_recipe(request: CaptureRequest) -> CaptureRecipe:
    """The commands for ``request``. Raises UsageError for a command that runs no program to profile."""
    if request.framework not in FRAMEWORKS:
        raise UsageError(f"--framework: expected one of {', '.join(FRAMEWORKS)}, found {request.framework}")
    command = request.command or tuple(_EXAMPLES[request.launcher, request.framework].split())
    wrapped = wrap(command, profiler_words(request.launcher, request.memory), _settings(request))
    return CaptureRecipe(
        (
            CaptureStep(("the folder for the reports",), "mkdir -p profiles"),
            CaptureStep(
                (*_explain_launch(request, command), *_explain_steps(request), *_explain_options(request)), wrapped
            ),
            CaptureStep(
                ("export the reports, on any machine that has nsys",),
                'for report in profiles/*.nsys-rep; do nsys export --type sqlite -o "${report%.nsys-rep}.sqlite" '
                '"$report"; done',
            ),
            CaptureStep(("check what this capture can support and what is missing",), "three-walls doctor profiles/"),
            CaptureStep((), "three-walls analyze profiles/ --out report"),
        )
    )


def _settings(request: CaptureRequest) -> tuple[str, ...]:
    settings: dict[str, ConfigData] = {
        "use_nsys_profiler": True,
        "profile_step_start": request.first_step,
        "profile_step_end": request.end_step,
        "profile_ranks": request.ranks,
        "log_interval": 1,
    }
    if request.framework == BRIDGE:
        settings["record_shapes"] = True
    return spell_settings(settings, request.framework)


def _explain_launch(request: CaptureRequest, command: Sequence[str]) -> list[str]:
    reasons = ["one report per rank: the profiler runs inside the launcher, so each report records its rank"]
    if request.launcher != SRUN and find_launcher(command) is not None:
        reasons.append("--no-python: torchrun starts the profiler, the profiler starts python")
    if not request.command:
        reasons.append("to wrap your own command, give it after `three-walls capture ... --`")
    return reasons


def _explain_steps(request: CaptureRequest) -> list[str]:
    count = request.end_step - request.first_step
    ranks = f"{len(request.ranks)} ranks" if len(request.ranks) > 1 else "1 rank"
    reasons = [
        f"steps {request.first_step} to {request.end_step - 1} of {ranks}: the first contains the profiler's start "
        f"and the last its stop, so {count - 2} are clean; train at least to step {request.end_step}",
        "profile every rank of an expert-parallel group: only then waiting for peers is separated from transfer",
        "log interval 1: the log's unprofiled step times show what the profiler costs",
    ]
    if request.framework == BRIDGE:
        reasons.append("profiling.nvtx_ranges stays off: its ranges slow every iteration, also the unprofiled ones")
        reasons.append("record_shapes: records operator shapes, for GEMMs by shape and upper bounds of fused kernels")
    return reasons


def _explain_options(request: CaptureRequest) -> list[str]:
    by_release: dict[str, list[NsysOption]] = {}
    for row in _select_options(request.memory):
        by_release.setdefault(row.since, []).append(row)
    reasons = []
    for since, options in sorted(by_release.items()):
        reasons += [f"{row.option}: {row.reason}" for row in options]
        reasons.append(f"the options above were checked with nsys {since} and newer")
    if request.graphs:
        reasons.append("with CUDA graphs, tracing by node slows their launches: compare with the step times in the log")
    return reasons
