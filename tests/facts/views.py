"""Views of made-up runs and steps, and the facts that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import cast

import polars as pl

from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.declare import CATALOG, Artifacts
from three_walls.lib.fact import FactValue
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.step_view import RunView, StepView
from three_walls.tables.hardware import GpuModel
from three_walls.trace.capabilities import YES
from three_walls.trace.identity import Rank
from three_walls.trace.read_trace import Trace

_NEEDS = sorted({need for definition in DEFINITIONS for need in definition.needs})
RANK = Rank(0, 0, "environment", 1, 0, "host", None, "trace.sqlite")


def run_view(config: RunConfig | None = None, gpu: GpuModel | None = None) -> RunView:
    config = config or RunConfig()
    return RunView(config, read_layout(config), gpu, capabilities=dict.fromkeys(_NEEDS, YES))


def measure(module: ModuleType, **given: object) -> dict[str, tuple[FactValue, str | None]]:
    """Value and missing reason of every fact of ``module``, by name, made from what is ``given``."""
    made = Artifacts(given)
    facts = [each for each in CATALOG.declared.values() if each.module == module.__name__ and each.definition]
    found = {each.definition.name: made.named(each.definition.name) for each in facts if each.definition}
    return {name: (each.value, each.missing_reason) for name, each in found.items()}


def step_view(
    operations: pl.DataFrame | None = None,
    slices: pl.DataFrame | None = None,
    run: RunView | None = None,
    window: tuple[int, int] = (0, 1000),
    names: Mapping[int, str] | None = None,
) -> StepView:
    """A step [start, end) of these frames; what measuring functions do not read of it is empty."""
    return StepView(
        run=run or run_view(),
        trace=cast(Trace, SimpleNamespace(names=names or {})),
        rank=RANK,
        step=0,
        start_ns=window[0],
        end_ns=window[1],
        operations=pl.DataFrame() if operations is None else operations,
        slices=pl.DataFrame() if slices is None else slices,
        budget_ns={},
        transfer_ns={},
        kept_steps=pl.DataFrame(),
        why="the only step",
    )
