"""What lies beside the traces of a run: its training log, its progress file, and its saved configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from three_walls.log.read_log import LOG_SUFFIXES, is_log, plain_log_name
from three_walls.megatron.settings.saved_config import CONFIG_NAME
from three_walls.trace.run_request import RunRequest
from three_walls.trace.trace_files import holds_traces

_PROGRESS_NAME = "progress.txt"
_OVERRIDES = "overrides."
"""Begins the names of files that ``analyze`` writes."""
_RANK = re.compile(r"rank[._-]?\d{1,6}", re.IGNORECASE)
"""Of a name of a log that each rank has: the last one's holds iterations, the first one's memory."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The log and the configuration of the run in a directory; nothing where that would be a guess."""

    logs: tuple[Path, ...] = ()
    config: Path | None = None
    unclear: str = ""
    """Why no log is taken although some are there, and what to do."""


def find_beside(directories: Iterable[Path]) -> Beside:
    """What lies in those of ``directories`` that hold traces, not below them.

    Logs whose names differ only in the rank are of one run. Of other several logs none is taken.
    """
    folders = [folder for folder in directories if folder.is_dir() and holds_traces(folder)]
    files = [path for folder in folders for path in sorted(folder.iterdir()) if is_log(path)]
    logs = [path for path in files if not plain_log_name(path).startswith((_OVERRIDES, _PROGRESS_NAME))]
    # A train.log counts more than the notes.txt and the stderr beside it.
    logs = next((same for suffix in LOG_SUFFIXES if (same := _with_suffix(logs, suffix))), [])
    progress = [path for path in files if plain_log_name(path) == _PROGRESS_NAME]
    configs = [path for folder in folders if (path := folder / CONFIG_NAME).is_file()]
    unclear = ""
    if len({_RANK.sub("rank", plain_log_name(path)) for path in logs}) > 1:
        names = ", ".join(path.name for path in logs[:4]) + (", ..." if len(logs) > 4 else "")
        unclear = (
            f"{len(logs)} logs lie beside the traces ({names}) and none was read: name those of this run with --log, "
            "or leave them out with --no-log."
        )
    return Beside(() if unclear else (*logs, *progress), configs[0] if len(configs) == 1 else None, unclear)


def _with_suffix(paths: Iterable[Path], suffix: str) -> list[Path]:
    return [path for path in paths if plain_log_name(path).endswith(suffix)]


def add_beside(request: RunRequest, *, with_log: bool = True, with_config: bool = True) -> RunRequest:
    """``request`` with the log and the configuration that lie beside its traces, unless it names others."""
    found = find_beside(request.traces)
    if with_log and not request.logs:
        request = replace(request, logs=found.logs, unclear_logs=found.unclear)
    if with_config and request.config is None:
        request = replace(request, config=found.config)
    return request
