"""The options that commands share. Those of a run become a :class:`RunRequest`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import click

from three_walls.trace.report_export import name_nsys
from three_walls.trace.run_request import RunRequest, Workers

Command = Callable[..., None]

_SMALL_BYTES = 64 * 1024 * 1024
"""Of plain exports. A second thread of polars makes a run of 6 to 24 MB no shorter, and costs a tenth more CPU time to
wake and to wait; of 106 MB it saves a twentieth of the wall time."""
_UNPACKED_TIMES = 5
"""How much longer the exports of sample_traces are than their .xz."""

traces_argument = click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))


nsys_option = click.option(
    "--nsys",
    metavar="PATH",
    expose_value=False,
    callback=lambda _context, _parameter, path: None if path is None else name_nsys(path),
    help="The nsys that exports reports (.nsys-rep).  [default: $NSYS, else the one on PATH]",
)

_RECORDED = {
    "memory": "Also record memory taken from the driver (slows the run).",
    "gpu_metrics": "Also sample hardware counters. Exports get seven times as large; without permission nothing is "
    "profiled.",
    "python_sampling": "Also sample Python's stacks (slows the host). They show in Nsight Systems' window, not in a "
    "report.",
}


def recording_options(command: Command) -> Command:
    """What to record beyond the usual: a flag each, named as in ``tables/capture.yaml``."""
    for name in reversed(_RECORDED):
        command = click.option(f"--{name.replace('_', '-')}", is_flag=True, help=_RECORDED[name])(command)
    return command


def list_recorded(flags: Mapping[str, bool]) -> frozenset[str]:
    """What of :func:`recording_options` is asked for."""
    return frozenset(name for name, is_asked in flags.items() if is_asked)


_OPTIONS: dict[str, Callable[[Command], Command]] = {
    "logs": click.option(
        "--log",
        "logs",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Training log of the same run, its progress.txt, or a directory (.xz, .zst, .gz too). Repeatable.",
    ),
    "config": click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="The run's saved configuration: run_config.yaml of a checkpoint or of logger.save_config_filepath.",
    ),
    "step_range": click.option(
        "--step-range",
        metavar="REGEX",
        help="NVTX ranges that mark training steps, for a trace without training_step_N ranges: a regular expression "
        "without look-around and backreferences.",
    ),
    "kernel_names": click.option(
        "--kernel-names",
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="What kernels of your own are: a YAML file of patterns, searched before the program's own.",
    ),
    "settings": click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of the run, by Megatron Core name or Bridge path; overrides every other source. Repeatable.",
    ),
    "bridge_version": click.option(
        "--bridge-version", metavar="X.Y.Z", help="Megatron-Bridge release to spell the overrides for."
    ),
    "rules": click.option(
        "--rules",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="A directory of your own rules, judged together with the built-in ones.",
    ),
    "memory_snapshot": click.option(
        "--memory-snapshot",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Snapshot of PyTorch's CUDA allocator (.pickle, .json) of one rank; nothing in it is run.",
    ),
    "jobs": click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(min=1),
        help="Traces that are read at a time: by threads, of a run with more than 32 traces by processes.  "
        "[default: one per core]",
    ),
    "scheduler": click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Survey a run with more than 32 traces on the Dask cluster of this scheduler (tcp://host:port) instead; "
        "its workers must see the traces under the same paths. Needs three-walls[cluster].",
    ),
}
_OF_EVERY_RUN = ("logs", "config", "step_range", "kernel_names")
_BESIDE = (
    click.option("--no-log", is_flag=True, help="Leave out the log that lies in a directory of TRACES."),
    click.option("--no-config", is_flag=True, help="Leave out the run_config.yaml that lies in a directory of TRACES."),
)


def run_options(*names: str) -> Callable[[Command], Command]:
    """Adds TRACES, the options of every run and those of ``names`` to a command, which gets all of them as ``request``.

    Chooses how many threads polars has, before the command imports it.
    """
    options = (*_OF_EVERY_RUN, *names)

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(traces: tuple[Path, ...], no_log: bool, no_config: bool, **values: Any) -> None:
            choose_threads(traces)
            given = {name: values.pop(name) for name in options}
            workers = Workers(given.pop("jobs", None) or Workers.per_core().jobs, given.pop("scheduler", None))
            from three_walls.trace.beside import add_beside  # it reads logs, which not every command does

            request = RunRequest(traces, workers=workers, **given)
            command(add_beside(request, with_log=not no_log, with_config=not no_config), **values)

        added: list[Callable[[Command], Command]] = [traces_argument, *map(_OPTIONS.__getitem__, options[:2]), *_BESIDE]
        added += [*map(_OPTIONS.__getitem__, options[2:]), nsys_option]
        decorated: Command = run
        for add in reversed(added):  # click lists the last one first
            decorated = add(decorated)
        return decorated

    return decorate


def choose_threads(traces: Iterable[Path]) -> None:
    """Lets polars compute on one thread where ``traces`` are small. Works only before polars is imported.

    The caller's own ``POLARS_MAX_THREADS`` counts more.
    """
    with suppress(OSError):  # what cannot be read is reported where it is read
        files = [file for path in traces for file in (path.iterdir() if path.is_dir() else (path,))]
        if not any(file.is_dir() for file in files) and sum(map(_count_bytes, files)) <= _SMALL_BYTES:
            os.environ.setdefault("POLARS_MAX_THREADS", "1")


def _count_bytes(file: Path) -> int:
    from three_walls.trace.unpack import COMPRESSED_SUFFIXES

    return file.stat().st_size * (_UNPACKED_TIMES if file.suffix in COMPRESSED_SUFFIXES else 1)
