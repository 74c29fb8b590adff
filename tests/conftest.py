"""What every test may use."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is no counterexample; every run tries the same examples.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.load_profile("repository")

sys.path.insert(0, str(Path(__file__).parent))

# `make test-browser` runs these: they need a Chromium, and playwright to drive it.
collect_ignore = [] if "THREE_WALLS_CHROMIUM" in os.environ else ["browser"]
# `make test-cluster` runs these: they need dask.
collect_ignore += [] if "THREE_WALLS_CLUSTER" in os.environ else ["step/survey/cluster"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program works on air-gapped clusters: a connection attempt fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("a test tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True)
def plain_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal in which the tests run decides nothing: pytest-xdist tells its workers how wide it is."""
    monkeypatch.delenv("COLUMNS", raising=False)
