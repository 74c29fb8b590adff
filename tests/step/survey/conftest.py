"""The run that the workers of these tests survey."""

from __future__ import annotations

from pathlib import Path

import pytest
from lockstep import Behaviour, simulate

from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.build_timeline import wanted_ranges
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_inputs import read_inputs
from three_walls.trace.run_request import RunRequest


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The traces of six ranks."""
    return simulate([Behaviour()] * 6, steps=3).write(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def config(paths: list[Path]) -> RunConfig:
    graph_launch = union_of(load_api_patterns(), "graph_launch")
    return read_inputs(RunRequest(tuple(paths)), wanted_ranges(None), graph_launch, lambda _: None).config
