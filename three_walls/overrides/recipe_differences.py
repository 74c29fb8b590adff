"""A tuned recipe's settings beside a run's: which differ, the knobs that the plan turns first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from three_walls.model.buckets import Wall
from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.fact import FactSheet
from three_walls.model.finding import PlanStep
from three_walls.model.report import BATCH_SIZE, BENCHMARK_SETTING, RecipeDifference
from three_walls.rules.conditions import same
from three_walls.tables.config_keys import config_keys
from three_walls.tables.thresholds import RecipeLimits
from three_walls.tables.tuned_recipes import TunedRecipe

_WALLS = tuple(Wall)


def compare_settings(
    recipe: TunedRecipe,
    config: RunConfig,
    facts: FactSheet,
    plan: Sequence[PlanStep],
    wall: Wall | None,
    limits: RecipeLimits,
) -> tuple[tuple[RecipeDifference, ...], int, int]:
    """What differs, how many settings are the same, and of how many the run's value is unknown.

    In order: what the plan edits, knobs of the verdict's wall, of the other walls, of none (environment variables),
    then marked ones, which are no knobs for speed; by name among equals.
    """
    planned = {(edit.kind, edit.key) for step in plan for edit in step.edits}
    differences: list[RecipeDifference] = []
    same_count = unknown_count = 0
    for kind, key, ran, recipe_value, is_known in _pairs(recipe, config, facts, limits):
        if not is_known:
            unknown_count += 1
        elif _alike(key, ran, recipe_value):
            same_count += 1
        else:
            names = {key, limits.newer_names.get(key, key)}
            in_plan = any((kind, name) in planned for name in names)
            differences.append(RecipeDifference(key, kind, ran, recipe_value, in_plan, _mark(key, limits)))

    def rank(one: RecipeDifference) -> tuple[bool, bool, int, str]:
        return not one.in_plan, one.mark != "", _wall_rank(one, wall), one.key

    return tuple(sorted(differences, key=rank)), same_count, unknown_count


def _pairs(
    recipe: TunedRecipe, config: RunConfig, facts: FactSheet, limits: RecipeLimits
) -> Iterator[tuple[str, str, ConfigData, ConfigData, bool]]:
    """Kind, key, the run's value, the recipe's value, whether the run's is known."""
    for key, value in recipe.settings.items():
        newer = limits.newer_names.get(key)
        name = newer if newer is not None and config.get(newer) is not None else key
        yield "config", key, config.get(name), value, config.knows(name)
    for variable, value in recipe.environment.items():
        fact = facts.get(f"env.{variable}")
        yield "env", variable, None if fact.value is None else str(fact.value), value, not fact.is_missing


def _alike(key: str, one: ConfigData, other: ConfigData) -> bool:
    return same(_settled(key, one), _settled(key, other))


def _settled(key: str, value: ConfigData) -> ConfigData:
    """What an unset setting comes to: Megatron-LM's default, nothing for a list, off for a switch."""
    known = config_keys().keys.get(key)
    if value is not None or known is None:
        return value
    if known.megatron_lm is not None and known.megatron_lm.default is not None:
        return known.megatron_lm.default
    return False if known.type == "bool" else () if known.type == "list" else None


def _mark(key: str, limits: RecipeLimits) -> str:
    if key in limits.benchmark_settings:
        return BENCHMARK_SETTING
    return BATCH_SIZE if key in limits.batch_settings else ""


def _wall_rank(one: RecipeDifference, first: Wall | None) -> int:
    known = config_keys().keys.get(one.key)
    if one.kind != "config" or known is None or known.wall is None:
        return len(_WALLS)
    return -1 if known.wall == first else _WALLS.index(Wall(known.wall))
