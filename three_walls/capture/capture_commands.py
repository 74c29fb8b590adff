"""From a launch command to the commands that capture that run, export the capture and analyze it.

The profiler runs inside torchrun or srun, around the program of each rank, so that every report records its rank.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from three_walls.capture.capture_guide import BRIDGE, FRAMEWORKS, GPU_METRICS, MEGATRON_LM, NsysOption, capture_rules
from three_walls.lib.errors import UsageError
from three_walls.lib.hydra import write_value
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.shell import is_variable, quote_assignment, quote_word
from three_walls.tables.config_keys import config_keys

TORCHRUN, SRUN = "torchrun", "srun"
LAUNCHERS = (TORCHRUN, SRUN)
_RANK_VARIABLES = {TORCHRUN: "RANK", SRUN: "SLURM_PROCID"}
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_INTERPRETER = ("python", "python3", "python2")
_LAUNCHES = {TORCHRUN: "torchrun --nproc-per-node 8", SRUN: "srun python"}
_PROGRAMS = {BRIDGE: "run_recipe.py --recipe RECIPE", MEGATRON_LM: "pretrain_gpt.py"}
"""What a command is made of where none is given."""
PROFILES = "profiles"
"""Directory of everything that a capture leaves."""
RUN_CONFIG = "run_config.yaml"
"""Name of Megatron-Bridge's saved configuration."""
_GPU = "GPU"
"""Stands in options for the number of the rank's GPU."""
_LOCAL_RANKS = {TORCHRUN: "LOCAL_RANK", SRUN: "SLURM_LOCALID"}
_MOST_RANKS = 65536
_FORCED = "++profiling."
"""Begins overrides of a section that a recipe may lack: they apply whether or not it has one."""


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What to capture, and how."""

    launcher: str
    framework: str
    first_step: int
    """The first profiled step."""
    end_step: int
    """The first step after those: not profiled."""
    ranks: tuple[int, ...]
    graphs: bool = False
    """Whether the run uses CUDA graphs."""
    recorded: frozenset[str] = frozenset()
    """What to record beyond the usual: ``memory``, ``gpu_metrics``, ``python_sampling``."""
    command: tuple[str, ...] = ()
    """The launch command; empty for an example."""


@dataclass(frozen=True, slots=True)
class CaptureStep:
    """A command for a shell, and the reasons for it, one per line."""

    reasons: tuple[str, ...]
    command: str


def read_steps(text: str) -> tuple[int, int]:
    """``first_step`` and ``end_step`` of ``10-14``, which profiles steps 10 to 13. Raises UsageError for too few."""
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if match is None:
        raise UsageError(f"--steps: expected two numbers like 10-14, found {text}")
    first, end = int(match[1]), int(match[2])
    least = capture_rules().minimum_steps
    if end - first < least:
        raise UsageError(
            f"--steps: expected at least {least} steps (the first contains the start of the profiler, the last its "
            f"end), found {max(0, end - first)} in {text}"
        )
    return first, end


def read_ranks(text: str) -> tuple[int, ...]:
    """The ranks 0, 1, 2, 3 and 8 of ``0-3,8``. Raises UsageError for anything else than numbers and ranges."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None:
            raise UsageError(f"--ranks: expected numbers and ranges like 0-7,16, found {text}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > _MOST_RANKS:
            raise UsageError(f"--ranks: expected rising ranges up to at most {_MOST_RANKS}, found {part.strip()}")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def profiler_words(launcher: str, recorded: Collection[str]) -> tuple[str, ...]:
    """``nsys profile`` with its options, for a shell."""
    start: tuple[str, ...] = ("nsys", "profile")
    usual = nsys_options({*recorded} - {GPU_METRICS})
    if GPU_METRICS in recorded:  # only a shell on each rank knows the rank's GPU
        sampling = nsys_options(recorded, gpu=f"${_LOCAL_RANKS[launcher]}")
        metrics = [option for option in sampling if option not in usual]
        start = ("sh", "-c", quote_word(f'exec nsys profile {" ".join(metrics)} "$@"'), "nsys")
    report = f"{PROFILES}/rank%q{{{_RANK_VARIABLES[launcher]}}}"  # nsys replaces the variable: a report per rank
    return (*start, *usual, "-o", quote_word(report))


def nsys_options(uses: Collection[str], gpu: str = "") -> tuple[str, ...]:
    """Options of ``nsys profile``. ``uses``: what to record beyond the usual, and ``attach`` where that runs it.

    ``gpu``: whose counters to sample.
    """
    return tuple(row.option.replace(f"={_GPU}", f"={gpu}") for row in _select_options(uses))


def _select_options(uses: Collection[str]) -> list[NsysOption]:
    return [row for row in capture_rules().nsys if row.when in ("always", *uses)]


def make_recipe(request: CaptureRequest) -> tuple[CaptureStep, ...]:
    """The commands for ``request``, in order. Raises UsageError for a command that runs no program to profile."""
    if request.framework not in FRAMEWORKS:
        raise UsageError(f"--framework: expected one of {', '.join(FRAMEWORKS)}, found {request.framework}")
    command = request.command or (*_LAUNCHES[request.launcher].split(), *_PROGRAMS[request.framework].split())
    appended = spell_settings(capture_settings(request), request.framework)
    analyze = f"three-walls analyze {PROFILES}/ --log {PROFILES}/"
    if request.framework == BRIDGE:
        appended = (*appended, f"{capture_rules().saved_config}={PROFILES}/{RUN_CONFIG}")
        analyze += f" --config {PROFILES}/{RUN_CONFIG}"
    launch = wrap(command, profiler_words(request.launcher, request.recorded), appended)
    reasons = (*_explain_launch(request, command), *_explain_steps(request), *_explain_options(request))
    return (
        CaptureStep(("create the directory for reports, log and configuration",), f"mkdir -p {PROFILES}"),
        CaptureStep((*reasons, "tee keeps the log, which analyze reads"), f"{launch} 2>&1 | tee {_log_path(command)}"),
        CaptureStep(
            ("export the reports to SQLite, on any machine with nsys",),
            f"for report in {PROFILES}/*.nsys-rep; do nsys export --type sqlite --force-overwrite=true "
            '-o "${report%.nsys-rep}.sqlite" "$report"; done',
        ),
        CaptureStep(("check what this capture supports and what it lacks",), f"three-walls doctor {PROFILES}/"),
        CaptureStep((), f"{analyze} --out report"),
    )


def _log_path(command: Sequence[str]) -> str:
    """The log of the launch. On several nodes torchrun is launched once per node, and each launch has its own log."""
    nodes = _option_value(command, "nnodes") if find_launcher(command) == TORCHRUN else None
    if nodes in (None, "1", "1:1"):
        return f"{PROFILES}/train.log"
    return f'"{PROFILES}/train${{NODE_RANK:-${{SLURM_NODEID:-0}}}}.log"'


def capture_settings(request: CaptureRequest) -> dict[str, ConfigData]:
    """The settings with which the program starts and ends the capture and logs every step, by config key."""
    settings: dict[str, ConfigData] = {
        "use_nsys_profiler": True,
        "profile_step_start": request.first_step,
        "profile_step_end": request.end_step,
        "profile_ranks": request.ranks,
        "log_interval": 1,
    }
    if request.framework == BRIDGE:
        settings["record_shapes"] = True
    return settings


def _explain_launch(request: CaptureRequest, command: Sequence[str]) -> list[str]:
    reasons = ["one report per rank: the profiler runs inside the launcher, so each report records its rank"]
    if request.launcher != SRUN and find_launcher(command) is not None:
        reasons.append("--no-python: torchrun starts the profiler, which starts python")
    if GPU_METRICS in request.recorded:
        reasons.append(
            f"sh -c: only on its rank ${_LOCAL_RANKS[request.launcher]} is known, the number of the rank's GPU unless "
            "CUDA_VISIBLE_DEVICES hides some; three-walls attach looks that up"
        )
    if not request.command:
        reasons.append("to wrap your own command, append it: `three-walls capture ... -- COMMAND`")
    return reasons


def _explain_steps(request: CaptureRequest) -> list[str]:
    count = request.end_step - request.first_step
    ranks = f"{len(request.ranks)} ranks" if len(request.ranks) > 1 else "1 rank"
    reasons = [
        f"steps {request.first_step} to {request.end_step - 1} of {ranks}: the first contains the start of the "
        f"profiler and the last its end, so {count - 2} are clean; train at least to step {request.end_step}",
        "profile every rank of an expert-parallel group: only then can waiting for peers be separated from transfer",
        "log interval 1: the log's unprofiled step times show how much the profiler slows a step",
    ]
    if request.framework == BRIDGE:
        reasons.append("profiling.nvtx_ranges stays off: its ranges slow every iteration, even unprofiled ones")
        reasons.append("record_shapes: records operator shapes, for GEMMs by shape and upper bounds of fused kernels")
        reasons.append("++profiling: applies whether or not the recipe has a profiling section")
        reasons.append(f"{capture_rules().saved_config}: saves all settings, of which the command line has only a part")
    return reasons


def _explain_options(request: CaptureRequest) -> list[str]:
    by_release: dict[str, list[NsysOption]] = {}
    for row in _select_options(request.recorded):
        by_release.setdefault(row.since, []).append(row)
    reasons = []
    for since, options in sorted(by_release.items()):
        reasons += [f"{row.option}: {row.reason}" for row in options]
        reasons.append(f"the options above were checked with nsys {since} and newer")
    if request.graphs:
        reasons.append("tracing CUDA graphs by node slows their launches: compare with the step times in the log")
    return reasons


def find_launcher(command: Sequence[str]) -> str | None:
    """The launcher that ``command`` begins with, after any variables set in front of it; None for another program."""
    words = [PurePosixPath(word).name for word in command if not _is_assignment(word)]
    if words[:1] == [SRUN]:
        return SRUN
    if words[:1] == [TORCHRUN] or any(module in command for module in _LAUNCH_MODULES):
        return TORCHRUN
    return None


def count_ranks(command: Sequence[str]) -> int | None:
    """Number of ranks that torchrun starts; None where the command does not state it, or names several nodes."""
    if find_launcher(command) != TORCHRUN:
        return None
    if _option_value(command, "nnodes") not in (None, "1", "1:1"):
        return None
    count = _option_value(command, "nproc-per-node")
    return int(count) if count is not None and count.isdecimal() and len(count) < 6 and int(count) else None


def _option_value(command: Sequence[str], name: str) -> str | None:
    """The value of ``--name``, with hyphens or underscores, as the next word or after an equals sign."""
    for index, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == f"--{name}":
            return value if equals else next(iter(command[index + 1 :]), None)
    return None


def wrap(command: Sequence[str], profiler: Sequence[str], appended: Sequence[str]) -> str:
    """Puts the words of ``profiler`` before the program that each rank runs, and ``appended`` after it; for a shell.

    Raises UsageError where ``command`` names no program.
    """
    launcher = find_launcher(command)
    at, is_module = _program_index(command)
    if launcher == TORCHRUN:
        start = at - 1 if is_module else at
        # torchrun starts Python files; with --no-python it starts any program, here the profiler.
        no_python = () if "--no-python" in command or "--no_python" in command else ("--no-python",)
        front, program = (*command[:start], *no_python), ("python", *command[start:])
    else:
        start = _interpreter_before(command, at)
        front, program = tuple(command[:start]), tuple(command[start:])
    return " ".join([*_quote(front), *profiler, *_quote(program), *appended])


def _quote(words: Sequence[str]) -> list[str]:
    """A variable set in front of the command stays one: only its value is quoted."""
    return [quote_assignment(*word.split("=", 1)) if _is_assignment(word) else quote_word(word) for word in words]


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and is_variable(name)


def _program_index(command: Sequence[str]) -> tuple[int, bool]:
    """Index of the training script, or of the module after ``-m``, and whether it is a module."""
    for index, word in enumerate(command):
        if word == "-m" and index + 1 < len(command) and command[index + 1] not in _LAUNCH_MODULES:
            return index + 1, True
        if word.endswith(".py") and not word.endswith(("torch/distributed/run.py", "torch/distributed/launch.py")):
            return index, False
    words = " ".join(map(quote_word, command))
    raise UsageError(f"expected a command that runs a Python file or module (python -m), found: {words}")


def _interpreter_before(command: Sequence[str], at: int) -> int:
    """Index of the interpreter that runs the program at index ``at``; ``at`` itself where none is named."""
    before = (i for i in range(at - 1, -1, -1) if PurePosixPath(command[i]).name.rstrip("0123456789.") in _INTERPRETER)
    return next(before, at)


def spell_settings(settings: Mapping[str, ConfigData], framework: str) -> tuple[str, ...]:
    """Spells ``settings`` (by config key) for Megatron-Bridge or Megatron-LM, as words quoted for a shell.

    Keys that the framework lacks are left out.
    """
    return tuple(map(quote_word, setting_words(settings, framework)))


def setting_words(settings: Mapping[str, ConfigData], framework: str) -> tuple[str, ...]:
    """The same as plain words."""
    words = [word for key, value in settings.items() for word in _spell_setting(key, value, framework)]
    if framework == BRIDGE and any(word.startswith(_FORCED) for word in words):
        return (capture_rules().profiling_class, *words)
    return tuple(words)


def _spell_setting(key: str, value: ConfigData, framework: str) -> tuple[str, ...]:
    spelling = config_keys().keys[key]
    if framework == BRIDGE:
        paths = spelling.bridge.paths[:1] if spelling.bridge else ()
        return tuple(f"{'++' if path.startswith('profiling.') else ''}{path}={write_value(value)}" for path in paths)
    flag = spelling.megatron_lm.flag if spelling.megatron_lm else None
    if flag is None or value is False:
        return ()
    if value is True:
        return (flag,)
    values = value if isinstance(value, tuple) else (value,)
    return (flag, *(str(part) for part in values))
