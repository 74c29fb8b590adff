"""What every test may use."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

# A slow machine is no counterexample; every run tries the same examples.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.load_profile("repository")

sys.path.insert(0, str(Path(__file__).parent))

# `make test-browser` runs these: they need a Chromium, and playwright to drive it.
collect_ignore = [] if "THREE_WALLS_CHROMIUM" in os.environ else ["browser"]
# `make test-cluster` runs these: they need dask.
collect_ignore += [] if "THREE_WALLS_CLUSTER" in os.environ else ["step/survey/cluster"]


class FileOrCapture(LoadGroupScheduling):
    """A worker runs all tests of a file, or all that are marked to share a capture.

    Without this each unmarked test is a group of its own: what a file makes once is made by both workers, and the time
    that is spent on giving out tests grows with the square of their number.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileOrCapture | None:
    # What a single mark picks, as attacks, is little and takes long: each test goes to the worker that is free.
    are_few = config.option.markexpr.isidentifier()
    return FileOrCapture(config, log) if config.getvalue("dist") == "loadgroup" and not are_few else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long begins first, so that no worker is left alone with it at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Tests and reports of real captures stay to the end: to search them for garbage took a twentieth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _rank(item: pytest.Item) -> int:
    if item.path.parent.name == "tune":
        return 0  # jobs that are waited for
    return 1 if item.get_closest_marker("xdist_group") else 2 if item.get_closest_marker("slow") else 3


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program works on air-gapped clusters: a connection attempt fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("a test tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True, scope="session")
def plain_width() -> Iterator[None]:
    """The terminal in which the tests run decides nothing: pytest-xdist tells its workers how wide it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield
