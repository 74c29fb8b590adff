"""The benchmark of many ranks, run small: every error is 0."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import BENCHMARKS

BENCHMARK = BENCHMARKS / "sixteen_ranks.py"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("sixteen_ranks", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sixteen_ranks", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_eight_ranks_on_two_hosts_have_no_error(benchmark: ModuleType, tmp_path: Path) -> None:
    outcome = benchmark.measure(tmp_path, ranks=8, layers=2, steps=4)
    assert outcome.errors_ns
    assert {name: error for name, error in outcome.errors_ns.items() if error} == {}
    assert outcome.stragglers == outcome.expected
    assert all(wait.resolved for wait in outcome.report.waits)
