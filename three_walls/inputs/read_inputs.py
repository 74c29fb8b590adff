"""Everything that is read, before anything is said of it: traces, logs, settings of every source, a snapshot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from three_walls.facts.log_facts import find_other_sizes
from three_walls.inputs.config.log_settings import read_log_settings
from three_walls.inputs.config.merge import Merged, merge
from three_walls.inputs.config.parallel_layout import read_layout
from three_walls.inputs.config.sources import SaidSettings
from three_walls.inputs.config.stated import read_stated
from three_walls.inputs.log.progress import jobs_of_run
from three_walls.inputs.log.reader import read_logs
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
"""Told what is being done, in a few words, each time a stage begins."""

Paths = str | Path | Iterable[str | Path]


@dataclass(frozen=True, slots=True)
class Inputs:
    """``stated``: settings of the sources beside the trace, highest precedence first; ``merged``: of all sources."""

    traces: tuple[Trace, ...]
    log: TrainingLog | None
    snapshot: MemorySnapshot | None
    stated: tuple[SaidSettings, ...]
    merged: Merged

    @property
    def with_kernels(self) -> list[Trace]:
        """Traces that an analysis is of; there is at least one."""
        return [one for one in self.traces if one.ranks]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return tuple(rank for one in self.with_kernels for rank in one.ranks)

    @property
    def config(self) -> RunConfig:
        """The run's settings as all sources together say."""
        return self.merged.config

    @property
    def config_of_trace(self) -> RunConfig:
        """What the trace alone says: a log that contradicts it is of another run."""
        return self.with_kernels[0].config


def read_inputs(
    trace: Paths,
    logs: Paths,
    config: str | Path | None,
    settings: Iterable[str],
    memory_snapshot: Path | None,
    ranges: WantedRanges,
    graph_launch: re.Pattern[str],
    progress: Progress,
) -> Inputs:
    """Reads all that is given. Raises the errors of ``three_walls.model.errors``."""
    paths = find_traces(_as_paths(trace))
    said = read_stated(config, settings)
    log = _read_logs(_as_paths(logs), progress)
    snapshot = read_memory_snapshot(memory_snapshot) if memory_snapshot else None
    traces = _read_traces(paths, ranges, graph_launch, progress)
    first = next(one for one in traces if one.ranks)
    stated = (*said, *_settings_of(log, first.config))
    return Inputs(tuple(traces), log, snapshot, stated, merge([*stated, first.launch]))


def _as_paths(given: Paths) -> list[Path]:
    return [Path(given)] if isinstance(given, str | Path) else [Path(one) for one in given]


def _read_logs(paths: Sequence[Path], progress: Progress) -> TrainingLog | None:
    if not paths:
        return None
    progress("reading training logs")
    return read_logs(paths)


def _settings_of(log: TrainingLog | None, of_trace: RunConfig) -> list[SaidSettings]:
    """What the log says of the settings; nothing if it is of another run than the trace."""
    if log is None or find_other_sizes(log, of_trace):
        return []
    jobs = jobs_of_run(log.jobs, read_layout(of_trace).world or log.world_size) or log.jobs[-1:]
    return read_log_settings(
        log.argument_block,
        log.config_dump,
        log.non_default_settings,
        log.versions,
        asdict(log.layout),
        jobs[-1].gpus if jobs else None,
        log.config_objects,
    )


def _read_traces(
    paths: Sequence[Path], ranges: WantedRanges, graph_launch: re.Pattern[str], progress: Progress
) -> list[Trace]:
    traces: list[Trace] = []
    rank_indices = 0
    for order, path in enumerate(paths, start=1):
        progress(f"reading {path.name} ({order} of {len(paths)})")
        traces.append(read_trace(path, order - 1, rank_indices, ranges, graph_launch))
        rank_indices += len(traces[-1].ranks)
    if not rank_indices:
        names = ", ".join(path.name for path in paths)
        raise NothingToAnalyzeError(
            f"{names}: expected CUDA kernels, found none; capture with: nsys profile -t cuda,nvtx ... "
            "(and check that the capture range covers training steps)"
        )
    return traces
