"""What counts as near when a tuned recipe is looked for: ``tables/nearest-recipe.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict

NEAREST_RECIPE_FILE = TABLES_DIR / "nearest-recipe.yaml"


@dataclass(frozen=True, slots=True)
class RecipeLimits:
    """The file's entries; what each means is said there."""

    largest_size_ratio: float
    layers_weight: float
    other_kind_ratio: float
    generations: Mapping[str, int]
    """GPU family -> its generation's place, from 0."""
    benchmark_settings: frozenset[str]
    batch_settings: frozenset[str]
    newer_names: Mapping[str, str]


@cache
def recipe_limits() -> RecipeLimits:
    """The limits that ship with the program."""
    return load_recipe_limits(NEAREST_RECIPE_FILE)


def load_recipe_limits(path: Path) -> RecipeLimits:
    """The limits in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), tuple(RecipeLimits.__dataclass_fields__))
    newer = problems.entries(top.get("newer_names"))
    limits = RecipeLimits(
        largest_size_ratio=problems.number(top.get("largest_size_ratio"), 1.0, 100.0),
        layers_weight=problems.number(top.get("layers_weight"), 0.0, 1.0),
        other_kind_ratio=problems.number(top.get("other_kind_ratio"), 1.0, 100.0),
        generations=MappingProxyType(
            {
                family: place
                for place, families in enumerate(problems.items(top.get("generations")))
                for family in problems.texts(families)
            }
        ),
        benchmark_settings=frozenset(problems.texts(top.get("benchmark_settings"))),
        batch_settings=frozenset(problems.texts(top.get("batch_settings"))),
        newer_names=MappingProxyType({key: problems.text(node) for key, node in newer.items()}),
    )
    problems.raise_if_any()
    return limits
