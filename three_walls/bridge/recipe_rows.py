"""The nearest tuned recipe, as the report holds it."""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.lib.plain_data import ConfigData

BENCHMARK_SETTING = "benchmark setting"


BATCH_SIZE = "batch size"


@dataclass(frozen=True, slots=True)
class RecipeDifference:
    """A setting that differs between the run and a tuned recipe."""

    key: str
    kind: str
    """``config`` or ``env``."""
    run: ConfigData
    """Null: unset."""
    recipe: ConfigData
    in_plan: bool
    """Whether the plan edits it, to any value."""
    mark: str = ""
    """Why it is no tuning knob: ``benchmark setting``, ``batch size``; empty for a knob."""


@dataclass(frozen=True, slots=True)
class KnownGoodRecipe:
    """NVIDIA's benchmark recipe nearest to the run: context for the plan, never a measured gain."""

    name: str
    """Function of Megatron-Bridge's ``perf_recipes``."""
    model: str
    gpu: str
    gpus: int
    precision: str
    distance_note: str
    """What matches the run and what does not."""
    source: str
    differences: tuple[RecipeDifference, ...]
    same_count: int
    """Settings with the same value in both."""
    unknown_count: int = 0
    """Settings of the recipe whose value in the run is not known."""
