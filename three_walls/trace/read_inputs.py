"""Reads everything that a user hands in: traces, training logs, settings of every source, a memory snapshot."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from three_walls.lib.errors import InputError, NothingToAnalyzeError
from three_walls.lib.report_warning import UNREADABLE, ReportWarning
from three_walls.lib.threads import read_each
from three_walls.log.training_log import ProgressJob, TrainingLog
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.log_settings import read_log_settings
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_user_settings
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.megatron.settings.saved_config import CONFIG_NAME, read_config_file
from three_walls.megatron.settings.setting_sources import CONFIG_FILE, KERNELS, USER, SettingsBuilder, SourceSettings
from three_walls.memory_snapshot.snapshot import MemorySnapshot
from three_walls.tables.config_values import show
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.kernel_names import shown_settings
from three_walls.trace.identity import Rank
from three_walls.trace.read_tables import WantedRanges
from three_walls.trace.read_trace import Capture, Trace, read_trace
from three_walls.trace.run_request import RunRequest
from three_walls.trace.spans import Device, StepsToRead
from three_walls.trace.trace_files import find_traces, find_unread

COMPARED_LAYOUT_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
"""Sizes of the parallel layout, which a log prints in lines of their own."""
COMPARED_ARGUMENTS = ("num_layers", "hidden_size", "seq_length", "micro_batch_size", "global_batch_size")
"""Config keys of the model and the batch, which a log has in Megatron-LM's arguments block. A log that states another
value of one of these than the trace's command line is of another run."""

Progress = Callable[[str], None]
"""Called with a few words when a stage begins."""

ChooseSteps = Callable[[Sequence[Path], int], Mapping[Path, Mapping[Device, StepsToRead]]]
"""For those of some captures, of a run with so many, of which not every step is read: which are of their ranks."""

BATCH_SIZE = "global_batch_size"
MOST_RANKS_IN_FULL = 32
"""Captures of a run that are all read in full; of more, all are surveyed and some are read in full. 32 are four hosts
of eight. In full a rank takes 7 MB for every 6 MB of its capture, surveyed about 0.1 MB; and a table of more ranks is
not read row by row."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that was read."""

    traces: tuple[Trace, ...]
    log: TrainingLog | None
    snapshot: MemorySnapshot | None
    explicit: tuple[SourceSettings, ...]
    """Settings of the sources other than the trace, highest precedence first."""
    config: RunConfig
    """The run's settings, merged from all sources."""
    config_without_log: RunConfig
    """The settings that the trace records, and those of a saved configuration. A log that contradicts them is of
    another run."""
    warnings: tuple[ReportWarning, ...] = ()
    """Traces that could not be read, and what was found next to them and not read."""
    paths: tuple[Path, ...] = ()
    """Where the traces are. Of more than are read in full, :attr:`traces` begins with the first that has kernels."""
    surveyed: tuple[Capture, ...] = ()
    """Every capture of a run of which only some ranks are read in full; empty where all are."""
    leaves_config: bool = False
    """Whether a saved configuration lies next to the traces that nobody asked for: it may be another run's."""

    @property
    def captures(self) -> tuple[Capture, ...]:
        """Every capture that was read, in full or not."""
        return self.surveyed or self.traces

    @property
    def with_kernels(self) -> list[Trace]:
        """The traces that can be analyzed, at least one; the others have no kernels."""
        return [trace for trace in self.traces if trace.ranks]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The captured ranks."""
        return tuple(rank for capture in self.captures for rank in capture.ranks)

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """When the first capture began and ended (:func:`find_window`)."""
        return find_window(self.with_kernels[0])

    @property
    def most_apart_ns(self) -> int:
        """What the clocks of the captures and of the log, which the last rank prints, differ by at most."""
        hosts = {rank.host for rank in self.ranks}
        is_whole = len(hosts) == 1 and read_layout(self.config_without_log).world == len(self.ranks)
        return MOST_APART_ON_HOST_NS if is_whole else MOST_APART_NS

    @property
    def is_to_be_surveyed(self) -> bool:
        """Whether there are more captures than are all read in full."""
        return len(self.paths) > MOST_RANKS_IN_FULL

    def without_log_settings(self, bridge_version: str | None) -> Inputs:
        """The same without the settings in the log: the lengths of its steps may show that it is of another run."""
        explicit = tuple(settings for settings in self.explicit if settings.source in (USER, CONFIG_FILE))
        return replace(self, explicit=explicit, config=_merge_settings(explicit, self.with_kernels[0], bridge_version))


MOST_APART_NS = 60_000_000_000
"""Between the captures of two ranks of one run on two hosts: their clocks differ by seconds at most."""
MOST_APART_ON_HOST_NS = 5_000_000_000
"""The same on one host. Ranks of one run are captured together: the windows of 57 overlap by 0.5 s or more. Two runs in
a row lie further apart, because the second has to start: 8.6 s at least of 124 pairs within a minute of each other."""
_PLACES = ("first", "second")
_WORLD_SIZE = "WORLD_SIZE"


def read_every_step(_: Sequence[Path], __: int) -> Mapping[Path, Mapping[Device, StepsToRead]]:
    """What :func:`read_inputs` is given where no capture is cut down while it is read."""
    return {}


def read_inputs(
    request: RunRequest,
    ranges: WantedRanges,
    graph_launch: re.Pattern[str],
    progress: Progress,
    choose_steps: ChooseSteps = read_every_step,
) -> Inputs:
    """Reads all that ``request`` names. ``ranges`` and ``graph_launch`` are as for :func:`read_trace`.

    ``choose_steps``: for the traces of which not every step is read, which are.

    Raises InputError for a file that cannot be read, UsageError for a setting that cannot be, and NothingToAnalyzeError
    where no trace has kernels.
    """
    paths = list(request.traces)
    trace_paths = find_traces(paths, request.exports, progress)
    user_config = [read_user_settings(request.settings)] if request.settings else []
    if request.config is not None:
        user_config.append(read_config_file(request.config))
    log, snapshot = _read_log(request.logs, progress), _read_snapshot(request.memory_snapshot)
    traces, unreadable = _read_traces(trace_paths, ranges, graph_launch, progress, request.workers.jobs, choose_steps)
    refuse_other_runs(traces, trace_paths)
    first = next(trace for trace in traces if trace.ranks)
    without_log = merge_sources([first.launch, *(source for source in user_config if source.source != USER)])
    explicit = (*user_config, *_settings_in(log, without_log))
    config = _merge_settings(explicit, first, request.bridge_version)
    unread = tuple(
        ReportWarning("report-not-exported", f"{report.name}: no nsys is on PATH to export this report; {reason}.")
        for report, reason in find_unread(paths)
    )
    unclear = (ReportWarning("logs-beside", request.unclear_logs),) if request.unclear_logs else ()
    warnings = (*(warn_of_unreadable(path, reason) for path, reason in unreadable), *unread, *unclear)
    folders = {path if path.is_dir() else path.parent for path in paths}
    return Inputs(
        traces=tuple(traces),
        log=log,
        snapshot=snapshot,
        explicit=explicit,
        config=config,
        config_without_log=without_log,
        warnings=warnings,
        paths=tuple(trace_paths),
        leaves_config=request.config is None and any((folder / CONFIG_NAME).is_file() for folder in folders),
    )


def refuse_other_runs(captures: Iterable[Capture], paths: Sequence[Path]) -> None:
    """Raises InputError where ``captures`` are not all of one run: a step is no mean of two runs' steps.

    ``paths``: of all captures, by their ``capture_id``.

    The ranks of a run have one command line, each rank one capture, and all of them are captured at one time. Most
    variables of their environments are alike, too.
    """
    captured = [capture for capture in captures if capture.ranks]
    first, *others = captured
    for other in others:
        hosts = {rank.host for rank in (*first.ranks, *other.ranks)}
        most_apart_ns = MOST_APART_NS if len(hosts) > 1 or None in hosts else MOST_APART_ON_HOST_NS
        if (apart_ns := _measure_time_between(first, other)) > most_apart_ns:
            raise of_two_runs(_name_apart(first, other, paths), f"{apart_ns / 1e9:,.0f} s lie between them")
        for key, *values in _list_differences(first.launch, other.launch):
            stated = " and ".join(f"{value} in the {place}" for value, place in zip(values, _PLACES, strict=True))
            raise of_two_runs(_name_apart(first, other, paths), f"{key} is {stated}")
    captures_of: dict[int, Capture] = {}
    for capture in captured:
        for number in {rank.rank for rank in capture.ranks if rank.rank_source != "order"}:
            if number in captures_of:
                names = _name_apart(captures_of[number], capture, paths)
                raise of_two_runs(names, f"both are of rank {number}")
            captures_of[number] = capture


def _measure_time_between(first: Capture, other: Capture) -> int:
    """From the end of one capture to the begin of the other; 0 or less where they overlap, or where it is not known."""
    window_ns, other_ns = find_window(first), find_window(other)
    if window_ns is None or other_ns is None:
        return 0
    return max(window_ns[0] - other_ns[1], other_ns[0] - window_ns[1])


def find_window(capture: Capture) -> tuple[int, int] | None:
    """When the first operation of ``capture`` began and the last one ended, in UTC ns; None where it is not known."""
    if not isinstance(capture, Trace) or capture.session_start_ns is None:
        return None
    begins_ns, ends_ns = capture.operations["start_ns"].min(), capture.operations["end_ns"].max()
    if not isinstance(begins_ns, int) or not isinstance(ends_ns, int):
        return None
    return capture.session_start_ns + begins_ns, capture.session_start_ns + ends_ns


def _list_differences(first: SourceSettings, second: SourceSettings) -> Iterator[tuple[str, str, str]]:
    """Settings and variables that two launches state differently. One that states none says nothing."""
    stated = (first.values, second.values)
    for key in sorted({*stated[0], *stated[1]} if all(stated) else ()):
        values = [settings[key].value if key in settings else None for settings in stated]
        if values[0] != values[1]:
            yield key, show(values[0]), show(values[1])
    environments = (first.environment, second.environment)
    worlds = [environment.get(_WORLD_SIZE) for environment in environments]
    if worlds[0] and worlds[1] and worlds[0].value != worlds[1].value:
        yield _WORLD_SIZE, show(worlds[0].value), show(worlds[1].value)
    for name in sorted(allowed_variables().alike) if all(environments) else ():
        exported = [environment.get(name) for environment in environments]
        texts = ["unset" if variable is None else show(variable.value) for variable in exported]
        if texts[0] != texts[1] and not any(variable and variable.is_withheld for variable in exported):
            yield name, texts[0], texts[1]


def _name_apart(first: Capture, other: Capture, paths: Sequence[Path]) -> str:
    """The names of both files; of two with the same name, where they lie below the folder that holds both."""
    first_path, other_path = (paths[capture.capture_id].absolute() for capture in (first, other))
    if first_path.name == other_path.name and first_path != other_path:
        folder = os.path.commonpath([first_path, other_path])
        return f"{first_path.relative_to(folder)} and {other_path.relative_to(folder)}"
    return f"{first_path.name} and {other_path.name}"


def of_two_runs(names: str, difference: str) -> InputError:
    """The refusal of captures with ``names`` (of two files), which ``difference`` shows to be of two runs."""
    return InputError(
        f"{names}: expected captures of one run, found those of two ({difference}); give those of one, or compare "
        "both: three-walls compare BEFORE AFTER"
    )


# Readers of what most runs lack are imported where they are needed.


def _read_log(paths: Sequence[Path], progress: Progress) -> TrainingLog | None:
    if not paths:
        return None
    from three_walls.log.read_log import read_logs

    progress("reading training logs")
    return read_logs(paths)


def _read_snapshot(path: Path | None) -> MemorySnapshot | None:
    if path is None:
        return None
    from three_walls.memory_snapshot.summarize_snapshot import read_memory_snapshot

    return read_memory_snapshot(path)


def warn_of_unreadable(path: Path, reason: str) -> ReportWarning:
    """The warning for the trace at ``path`` that the analysis goes without. ``reason``: the message of the error."""
    reason = show_name_alone(reason, path)
    return ReportWarning(UNREADABLE, f"A trace is left out, and nothing is known of its ranks: {reason}")


def show_name_alone(message: str, path: Path) -> str:
    """``message`` with the name of the file in place of its path: a report shows no directory of the machine."""
    return message.replace(str(path), path.name).replace(str(path.absolute()), path.name)


def _merge_settings(explicit: Iterable[SourceSettings], first: Trace, bridge_version: str | None) -> RunConfig:
    return merge_sources([*explicit, first.launch, read_kernel_settings(first)], bridge_version)


def read_kernel_settings(trace: Trace) -> SourceSettings:
    """The settings that the names of the kernels and NVTX ranges of ``trace`` show by themselves."""
    settings = SettingsBuilder(KERNELS)
    texts = trace.ranges["text"].unique().to_list()
    for row in shown_settings():
        names = trace.names.values() if row.kernels else ()
        if any(row.kernels and row.kernels.search(name) for name in names) or any(
            needle in text for text in texts for needle in row.ranges
        ):
            settings.set(row.key, row.value)
    return settings.build()


def _settings_in(log: TrainingLog | None, config_without_log: RunConfig) -> list[SourceSettings]:
    """The settings in the log; none if the log is of another run."""
    if log is None or find_other_sizes(log, config_without_log):
        return []
    jobs = jobs_of_run(log.jobs, read_layout(config_without_log).world or log.world_size) or log.jobs[-1:]
    return read_log_settings(log, jobs[-1].gpus if jobs else None)


def find_other_sizes(log: TrainingLog, config: RunConfig) -> str:
    """A size that differs between ``log`` and ``config``, as a sentence with both values; empty if none does.

    ``config`` holds the settings of the trace and of a saved configuration. A log with another one of
    the compared sizes is of another run.
    """
    if log.contradictions:
        return f"its own lines differ in {', '.join(log.contradictions)} (logs of several runs?)"
    world = config.environment.get(_WORLD_SIZE)
    sizes: list[tuple[str, object, ConfigValue | None]] = [("world_size", log.layout.world_size, world)]
    sizes += [(name, getattr(log.layout, name), config.values.get(name)) for name in COMPARED_LAYOUT_SIZES]
    values_of_log = [settings.values for settings in read_log_settings(log, None)]
    for name in (*COMPARED_LAYOUT_SIZES, *COMPARED_ARGUMENTS):
        logged = next((values[name] for values in values_of_log if name in values), None)
        sizes.append((name, None if logged is None else logged.value, config.values.get(name)))
    sizes.append((BATCH_SIZE, _find_batch_size(log, config), config.values.get(BATCH_SIZE)))
    for name, in_log, other in sizes:
        is_known = in_log not in (None, "None") and other is not None and other.value is not None
        if other is not None and is_known and str(in_log) != str(other.value):
            place = "config file" if other.source == CONFIG_FILE else "trace"
            return f"{name} is {in_log} in the log and {other.value} in the {place}"
    return ""


def _find_batch_size(log: TrainingLog, config: RunConfig) -> int | None:
    """The global batch size of the log's iterations; None where it grows during the run, or is not printed."""
    printed = {line.global_batch_size for line in log.iterations}
    is_constant = len(printed) == 1 and config.get("rampup_batch_size") is None
    return next(iter(printed)) if is_constant else None


def jobs_of_run(jobs: Sequence[ProgressJob], world: int | None) -> tuple[ProgressJob, ...]:
    """The jobs with as many GPUs as the run, in their order; if that number is unknown, as many as the last job."""
    gpus = world or (jobs[-1].gpus if jobs else None)
    return tuple(job for job in jobs if job.gpus == gpus)


def _read_traces(
    paths: Sequence[Path],
    ranges: WantedRanges,
    graph_launch: re.Pattern[str],
    progress: Progress,
    jobs: int,
    choose_steps: ChooseSteps,
) -> tuple[list[Trace], list[tuple[Path, str]]]:
    """The traces, and which cannot be read and why: of several, one that is damaged costs its own ranks only.

    Of more than are all read in full, the first with kernels: it gives the settings by which all are surveyed. Raises
    InputError where no trace can be read, and NothingToAnalyzeError where none has kernels.
    """

    is_surveyed = len(paths) > MOST_RANKS_IN_FULL
    of_all = {} if is_surveyed else choose_steps(paths, len(paths))

    def read(capture_id: int) -> Trace | InputError:
        path = paths[capture_id]
        to_read = choose_steps([path], len(paths)) if is_surveyed else of_all
        try:
            return read_trace(path, capture_id, 0, ranges, graph_launch, to_read=to_read.get(path, {}))
        except InputError as error:
            return error

    def begin(capture_id: int) -> None:
        progress(f"reading {paths[capture_id].name} ({capture_id + 1} of {len(paths)})")

    outcomes: list[Trace | InputError] = []
    if is_surveyed:
        for capture_id in range(len(paths)):
            begin(capture_id)
            first = read(capture_id)
            if isinstance(first, Trace) and first.ranks:
                return [first], []  # the survey names what cannot be read
            outcomes.append(first)
    else:
        outcomes = read_each(read, range(len(paths)), jobs, begin)
    traces: list[Trace] = []
    errors: list[tuple[Path, InputError]] = []
    ranks_count = 0
    for path, outcome in zip(paths, outcomes, strict=True):
        if isinstance(outcome, InputError):
            errors.append((path, outcome))
        else:
            traces.append(outcome.after(ranks_count))
            ranks_count += len(outcome.ranks)
    if errors and not ranks_count:
        raise errors[0][1]
    if not ranks_count:
        names = ", ".join(path.name for path in paths)
        raise NothingToAnalyzeError(
            f"{names}: expected CUDA kernels, found none; capture with: nsys profile -t cuda,nvtx ... "
            "(and check that the capture range covers training steps)"
        )
    return traces, [(path, str(error)) for path, error in errors]
