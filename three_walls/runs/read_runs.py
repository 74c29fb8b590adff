"""Reads runs to compare, whatever they are given as, and histories of runs.

A run is given as a trace, several (in a directory), a report.json or a directory with one, or training logs alone.
Options of the run follow its path, separated by commas: ``trace.sqlite,log=train.log``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from three_walls.advice.finding import Overrides
from three_walls.advice.verdict_rows import Verdict
from three_walls.facts.log_facts import log_summary
from three_walls.facts.sheet import make_sheet
from three_walls.lib.declare import Artifacts
from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.files import is_directory
from three_walls.lib.load_documents import Texts, load_table
from three_walls.lib.measurement import known_or_missing, missing
from three_walls.lib.version import VERSION
from three_walls.log.read_log import is_log, read_logs
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.log_settings import read_log_settings
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_user_settings
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.megatron.settings.saved_config import CONFIG_NAME, read_config_file
from three_walls.pipeline import analyze_run
from three_walls.report.comparison import History
from three_walls.report.json_report import load_report
from three_walls.report.render_report import REPORT_NAME
from three_walls.report.report import Report
from three_walls.runs.compared_run import Run
from three_walls.runs.judge_history import TriedWith, judge_history
from three_walls.step.step_rows import StepSummary
from three_walls.step.step_view import NO_STEP
from three_walls.trace.beside import find_beside
from three_walls.trace.read_inputs import Progress, jobs_of_run
from three_walls.trace.run_request import RunRequest, Workers
from three_walls.trace.trace_files import holds_traces, plain_name

LABEL_NAME = "tried.yaml"
TUNED_NAME = "tune.json"
"""Of the results of a tuning, whose runs lie in a folder beside it."""
_OPTION = re.compile(r",(log|config|set|kernel-names|name)=")
_FORM = "PATH[,log=FILE][,config=FILE][,set=KEY=VALUE][,kernel-names=FILE][,name=TEXT]"
_NO_TRACE = "only training logs were given"


@dataclass(frozen=True, slots=True)
class GivenRun:
    """A run as the user gives it."""

    path: Path
    logs: tuple[Path, ...] = ()
    config: Path | None = None
    settings: tuple[str, ...] = ()
    name: str = ""
    kernel_names: Path | None = None


def parse_run(text: str) -> GivenRun:
    """The run that ``text`` (:data:`_FORM`) gives. Raises UsageError for another text."""
    path, *rest = _OPTION.split(text)
    options = list(zip(rest[::2], rest[1::2], strict=True))
    if not path or any(not value for _, value in options):
        raise UsageError(f"expected {_FORM}, found {text!r}")
    values = {name: [value for option, value in options if option == name] for name, _ in options}
    for name in ("config", "kernel-names", "name"):
        if len(values.get(name, [])) > 1:
            raise UsageError(f"expected {name}= once, found it {len(values[name])} times in {text!r}")
    return GivenRun(
        path=Path(path),
        logs=tuple(map(Path, values.get("log", []))),
        config=Path(values["config"][0]) if "config" in values else None,
        settings=tuple(values.get("set", [])),
        name=values.get("name", [""])[0],
        kernel_names=Path(values["kernel-names"][0]) if "kernel-names" in values else None,
    )


def read_run(given: GivenRun, progress: Progress = lambda _: None) -> Run:
    """Reads or analyzes a run. Raises the errors of :func:`analyze` and UsageError for options that do not fit."""
    name, path = given.name or _name_of(given.path), given.path
    has_options = bool(given.logs or given.config or given.settings or given.kernel_names)
    if is_directory(path):
        report_file = _find_report(path)
        if report_file is None and (path / TUNED_NAME).is_file():
            raise UsageError(f"{path}: expected a run, found a tuning: compare two of the runs in {path / 'runs'}")
        path = report_file or path
        given = given if report_file else _complete(given)
    if path.suffix == ".json":
        if has_options:
            raise UsageError(f"{path}: a report is compared as it is; its options are for traces and logs")
        progress(f"reading {path.name}")
        return Run(name, load_report(path))
    if _is_log(path) or (path.is_dir() and not holds_traces(path)):
        if path.is_dir() and not any(map(_is_log, path.rglob("*"))):
            raise InputError(f"{path}: expected a {REPORT_NAME}, traces or training logs in this directory, found none")
        progress(f"reading the logs of {name}")
        return Run(name, summarize_logs((path, *given.logs), given.config, given.settings))
    request = RunRequest(
        (path,),
        given.logs,
        config=given.config,
        settings=given.settings,
        kernel_names=given.kernel_names,
        workers=Workers.per_core(),
    )
    return Run(name, analyze_run(request, progress=lambda stage: progress(f"{name}: {stage}")))


def _find_report(directory: Path) -> Path | None:
    """The report.json in ``directory``, or where ``three-walls attach`` puts it."""
    places = (directory / REPORT_NAME, directory / "report" / REPORT_NAME)
    return next((place for place in places if place.is_file()), None)


def _name_of(path: Path) -> str:
    """The name of a file, or of the directory of a report.json; of ``.`` that of the directory."""
    if path.name == REPORT_NAME:
        path = path.parent
    name = plain_name(path if path.name not in ("", "..") else path.resolve())
    for suffix in (".gz", ".sqlite", ".nsys-rep"):
        name = name.removesuffix(suffix)
    return name.removesuffix(".three-walls") or "run"


def _complete(given: GivenRun) -> GivenRun:
    """``given``, a directory, with the log and the configuration that lie in it, unless others were named."""
    found = find_beside([given.path])
    if found.unclear and not given.logs:
        raise UsageError(f"{given.path}: {found.unclear.replace('--log,', ',log=FILE,')}")
    config = given.config or found.config
    if config is None and (given.path / CONFIG_NAME).is_file():  # of logs alone
        config = given.path / CONFIG_NAME
    return replace(given, logs=given.logs or found.logs, config=config)


def _is_log(path: Path) -> bool:
    return is_log(path) and not path.name.startswith("overrides.")


def summarize_logs(logs: Sequence[Path], config: Path | None = None, settings: Sequence[str] = ()) -> Report:
    """The report of training logs without a trace: the log's facts and settings, no step, no verdict and no plan.

    Raises InputError where no log holds an iteration.
    """
    log = read_logs(logs)
    if not log.iterations:
        names = ", ".join(log.files)
        raise InputError(f"{names}: expected iteration lines of a training log (the last rank prints them), found none")
    jobs = jobs_of_run(log.jobs, log.world_size) or log.jobs[-1:]
    sources = [
        *([read_user_settings(list(settings))] if settings else []),
        *([read_config_file(config)] if config else []),
        *read_log_settings(log, jobs[-1].gpus if jobs else None),
    ]
    merged = merge_sources(sources)
    no_step = missing(NO_STEP)
    made = Artifacts(
        {
            "training_log": log,
            "config": merged,
            "config_without_log": RunConfig(),
            "captured_lengths": (),
            **dict.fromkeys(("inputs", "timeline", "matched_ranks", "attribution", "progress", "step", "run"), no_step),
            "memory_peak_bytes": no_step,
            "world_size": known_or_missing(read_layout(merged).world, _NO_TRACE),
        }
    )
    return Report(
        tool_version=VERSION,
        inputs=(),
        verdict=Verdict(None, None, True, "Only training logs were given.", None, None, None, None, {}),
        step=StepSummary("none", 0, (), None, None, None),
        ranks=(),
        budget=(),
        budget_of="",
        config=merged,
        facts=make_sheet(made, merged),
        findings=(),
        plan=(),
        overrides=Overrides("", (), (), {}),
        warnings=(),
        unclassified=(),
        capabilities={},
        log=made.pull(log_summary),
    )


def read_history(directory: Path, progress: Progress = lambda _: None) -> History:
    """The runs in ``directory``, in the order in which they began, each judged against the one it builds on.

    The clock is that of the traces where all runs have one, else that of the logs where all have one. Where neither is
    known of every run, the order is that of their names.

    A run is a subdirectory with a report.json, a trace, or logs. A file ``tried.yaml`` in it may give its ``label`` and
    the rules of the ``entries`` that it applies. Raises InputError where no subdirectory holds a run.
    """
    if not is_directory(directory):
        raise InputError(f"{directory}: expected a directory of runs, found a file")
    runs = sorted(filter(_holds_run, directory.iterdir()), key=_natural_order)
    if not runs:
        raise InputError(
            f"{directory}: expected subdirectories with a {REPORT_NAME}, a trace or a training log each, found none"
        )
    tries = [_read_tried(path, progress) for path in runs]
    for times in zip(*(each.run.began_at for each in tries), strict=True):
        if None not in times:
            in_order = sorted(range(len(tries)), key=lambda place: (str(times[place]), place))
            return replace(judge_history([tries[place] for place in in_order]), is_by_time=True)
    return judge_history(tries)


def _holds_run(path: Path) -> bool:
    if not path.is_dir() or path.name.startswith("."):
        return False
    return _find_report(path) is not None or holds_traces(path) or any(map(_is_log, path.iterdir()))


def _natural_order(path: Path) -> tuple[tuple[int, str], ...]:
    """``run-2`` before ``run-10``."""
    words = re.findall(r"\d+|\D+", path.name)
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in words)


def _read_tried(path: Path, progress: Progress) -> TriedWith:
    file = path / LABEL_NAME
    label = load_table(file, _Label) if file.is_file() else _Label()
    return TriedWith(read_run(GivenRun(path, name=label.label), progress), label.entries)


@dataclass(frozen=True, slots=True)
class _Label:
    """``tried.yaml``."""

    label: str = ""
    entries: Texts = ()
