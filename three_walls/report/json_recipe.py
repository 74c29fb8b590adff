"""The tuned recipe nearest to the run, as report.json holds it."""

from __future__ import annotations

from typing import Any

from three_walls.model.fact import FactValue
from three_walls.model.report import KnownGoodRecipe, Report

Json = dict[str, Any]


def recipe_as_json(report: Report) -> Json:
    """Top-level fields of the recipe, in the order of the contract."""
    recipe = report.known_good_recipe
    return {
        "known_good_recipe": None if recipe is None else _recipe(recipe),
        "no_recipe_reason": report.no_recipe_reason or None,
    }


def _recipe(recipe: KnownGoodRecipe) -> Json:
    return {
        "name": recipe.name,
        "model": recipe.model,
        "gpu": recipe.gpu,
        "gpus": recipe.gpus,
        "precision": recipe.precision,
        "distance_note": recipe.distance_note,
        "source": recipe.source,
        "differences": [
            {
                "key": one.key,
                "kind": one.kind,
                "run": _plain(one.run),
                "recipe": _plain(one.recipe),
                "in_plan": one.in_plan,
                "mark": one.mark or None,
            }
            for one in recipe.differences
        ],
        "same_count": recipe.same_count,
        "unknown_count": recipe.unknown_count,
    }


def _plain(value: FactValue) -> Any:
    return list(value) if isinstance(value, tuple) else value
