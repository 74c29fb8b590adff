"""Everything that is read before anything is concluded from it: traces, logs, settings of every source, a snapshot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from three_walls.inputs.config.log_settings import read_log_settings
from three_walls.inputs.config.merge import merge_sources
from three_walls.inputs.config.parallel_layout import read_layout
from three_walls.inputs.config.sources import SourceSettings
from three_walls.inputs.config.user_config import read_user_config
from three_walls.inputs.log.reader import read_logs
from three_walls.inputs.log.same_run import find_other_sizes, jobs_of_run
from three_walls.inputs.memory_snapshot.summarize import read_memory_snapshot
from three_walls.inputs.nsys.identity import Rank
from three_walls.inputs.nsys.reader import Trace, read_trace
from three_walls.inputs.nsys.source import find_traces
from three_walls.inputs.nsys.tables import WantedRanges
from three_walls.model.config import RunConfig
from three_walls.model.errors import NothingToAnalyzeError
from three_walls.model.memory_snapshot import MemorySnapshot
from three_walls.model.training_log import TrainingLog

Progress = Callable[[str], None]
"""Called with a few words each time a stage begins."""

Paths = str | Path | Iterable[str | Path]


@dataclass(frozen=True, slots=True)
class InputRequest:
    """What the user hands in."""

    trace: Paths
    """Exports of Nsight Systems, or directories of them."""
    logs: Paths = ()
    """Training logs, or directories of them."""
    config: str | Path | None = None
    """A saved configuration (``run_config.yaml``)."""
    settings: Iterable[str] = ()
    """``key=value`` each; they count before every other source."""
    memory_snapshot: Path | None = None
    """A snapshot of PyTorch's allocator of one rank."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that was read."""

    traces: tuple[Trace, ...]
    log: TrainingLog | None
    snapshot: MemorySnapshot | None
    stated: tuple[SourceSettings, ...]
    """Settings of the sources other than the trace, highest precedence first."""
    config: RunConfig
    """The run's settings, merged from all sources."""

    @property
    def with_kernels(self) -> list[Trace]:
        """Traces that the analysis is of; there is at least one."""
        return [trace for trace in self.traces if trace.ranks]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return tuple(rank for trace in self.with_kernels for rank in trace.ranks)

    @property
    def config_of_trace(self) -> RunConfig:
        """The settings that the trace alone gives: a log that contradicts it is of another run."""
        return self.with_kernels[0].config


def read_inputs(
    request: InputRequest, ranges: WantedRanges, graph_launch: re.Pattern[str], progress: Progress
) -> Inputs:
    """Reads all that ``request`` names. ``ranges`` and ``graph_launch`` are as for :func:`read_trace`.

    Raises the errors of ``three_walls.model.errors``.
    """
    trace_paths = find_traces(_as_paths(request.trace))
    user_config = read_user_config(request.config, request.settings)
    log_paths = _as_paths(request.logs)
    if log_paths:
        progress("reading training logs")
    log = read_logs(log_paths) if log_paths else None
    snapshot = read_memory_snapshot(request.memory_snapshot) if request.memory_snapshot else None
    traces = _read_traces(trace_paths, ranges, graph_launch, progress)
    first = next(trace for trace in traces if trace.ranks)
    stated = (*user_config, *_settings_in(log, first.config))
    return Inputs(tuple(traces), log, snapshot, stated, merge_sources([*stated, first.launch]))


def _as_paths(paths: Paths) -> list[Path]:
    return [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]


def _settings_in(log: TrainingLog | None, config_of_trace: RunConfig) -> list[SourceSettings]:
    """The settings in the log; none if it is of another run than the trace."""
    if log is None or find_other_sizes(log, config_of_trace):
        return []
    jobs = jobs_of_run(log.jobs, read_layout(config_of_trace).world or log.world_size) or log.jobs[-1:]
    return read_log_settings(log, jobs[-1].gpus if jobs else None)


def _read_traces(
    paths: Sequence[Path], ranges: WantedRanges, graph_launch: re.Pattern[str], progress: Progress
) -> list[Trace]:
    traces: list[Trace] = []
    ranks_count = 0
    for capture_id, path in enumerate(paths):
        progress(f"reading {path.name} ({capture_id + 1} of {len(paths)})")
        traces.append(read_trace(path, capture_id, ranks_count, ranges, graph_launch))
        ranks_count += len(traces[-1].ranks)
    if not ranks_count:
        names = ", ".join(path.name for path in paths)
        raise NothingToAnalyzeError(
            f"{names}: expected CUDA kernels, found none; capture with: nsys profile -t cuda,nvtx ... "
            "(and check that the capture range covers training steps)"
        )
    return traces
