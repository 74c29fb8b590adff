"""Views of made-up runs and steps, and measurements in a form that is easy to compare."""

from __future__ import annotations

from three_walls.facts.step_view import RunView
from three_walls.inputs.config.parallel_layout import read_layout
from three_walls.inputs.nsys.identity import Rank
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue, Measurements
from three_walls.tables.hardware import GpuModel

RANK = Rank(0, 0, "environment", 1, 0, "host", None, "trace.sqlite")


def run_view(config: RunConfig | None = None, gpu: GpuModel | None = None) -> RunView:
    config = config or RunConfig()
    return RunView(config, read_layout(config), gpu)


def pairs(measurements: Measurements) -> dict[str, tuple[FactValue, str | None]]:
    """Value and missing reason by name."""
    return {definition.name: (found.value, found.missing_reason) for definition, found in measurements.items()}
