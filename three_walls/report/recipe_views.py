"""What both renderers say of the tuned recipe nearest to the run."""

from __future__ import annotations

from three_walls.model.report import BATCH_SIZE, BENCHMARK_SETTING, KnownGoodRecipe
from three_walls.report.formats import format_count

CONTEXT = (
    "Settings that were fast there, with forced expert balance and mock data. None is a measured gain here; parallel "
    "sizes belong to the recipe's number of GPUs."
)
MARK_MEANINGS = {
    BENCHMARK_SETTING: "benchmarks only: not for a production run",
    BATCH_SIZE: "batch size: changes what is learned, or how the batch is cut",
}


def count_recipe_settings(recipe: KnownGoodRecipe) -> str:
    """How many of the recipe's settings the run has alike, and of how many its value is unknown."""
    unknown = f", {format_count(recipe.unknown_count)} unknown in the run" if recipe.unknown_count else ""
    return f"{format_count(recipe.same_count)} settings alike{unknown}"
