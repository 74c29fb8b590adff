"""A Dask cluster of real processes for the tests of this folder. ``make test-cluster`` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_STARTING_S = 60
_ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def no_network() -> None:
    """Instead of the fixture of the same name: these tests connect to processes of this machine."""


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with two workers, which are processes of one thread."""
    with running(tmp_path_factory.mktemp("cluster")) as (address, _):
        yield address


@contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Such a cluster: the address of its scheduler, and its workers."""
    file = folder / "scheduler.json"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (_ROOT, _ROOT / "tests"))),
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",  # instead of three more workers that a task may kill
    }

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *arguments, "--scheduler-file", str(file), "--no-dashboard"]
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    processes = [start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")]
    try:
        worker = ("distributed.cli.dask_worker", "--nthreads", "1", "--host", "127.0.0.1", *options)
        processes += [start(*worker) for _ in range(2)]
        yield _wait_for_workers(file, folder / "log"), processes[1:]
    finally:
        for process in processes:
            process.kill()  # their own shutdown waits for one another
        for process in processes:
            process.wait()


def _wait_for_workers(file: Path, log: Path) -> str:
    from distributed import Client

    deadline = time.monotonic() + _STARTING_S
    while not file.is_file():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    with Client(scheduler_file=str(file), timeout=_STARTING_S, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=_STARTING_S)
        return str(client.scheduler.address)
