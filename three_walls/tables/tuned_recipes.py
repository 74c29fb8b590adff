"""NVIDIA's tuned recipes of MoE pre-training: ``tables/generated/recipes.yaml``. Strict, all errors at once.

The file is made by ``tools/tuned_recipes.py``; nothing reads it before a recipe is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from three_walls.model.config import ConfigData
from three_walls.resources import GENERATED_DIR
from three_walls.tables.config_keys import config_keys
from three_walls.tables.config_values import fit
from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.yaml_nodes import Node

RECIPES_FILE = GENERATED_DIR / "recipes.yaml"
SIZES = ("hidden_size", "num_layers", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size")
"""Config keys that identify a model."""
_MODEL = (
    "sizes",
    "multi_latent_attention",
    "hybrid",
    "sizes_source",
    "settings",
    "environment",
    "recipes",
)
_RECIPE = ("gpu", "gpus", "precision", "variant", "source", "settings", "environment")


@dataclass(frozen=True, slots=True)
class TunedModel:
    """The model that recipes are for."""

    name: str
    sizes: Mapping[str, int]
    """By the keys of :data:`SIZES`."""
    multi_latent_attention: bool
    hybrid: bool
    """Not all its layers are attention: Mamba, linear attention."""


@dataclass(frozen=True, slots=True)
class TunedRecipe:
    """One recipe. A setting that it does not hold is unknown, not unset; ``None`` is unset."""

    name: str
    model: TunedModel
    gpu: str
    """Family, as in the hardware table."""
    gpus: int
    precision: str
    variant: str
    """What tells it from the plain recipe of the same kind; empty for that one."""
    source: str
    settings: Mapping[str, ConfigData]
    environment: Mapping[str, str]


@cache
def tuned_recipes() -> tuple[TunedRecipe, ...]:
    """The recipes that ship with the program."""
    return load_tuned_recipes(RECIPES_FILE)


def load_tuned_recipes(path: Path) -> tuple[TunedRecipe, ...]:
    """The recipes in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("models",))
    recipes = tuple(
        recipe
        for name, node in problems.entries(top.get("models")).items()
        for recipe in _read_model(name, node, problems)
    )
    problems.raise_if_any()
    return recipes


def _read_model(name: str, node: Node, problems: Problems) -> list[TunedRecipe]:
    entry = problems.fields(node, _MODEL)
    sizes = problems.fields(entry.get("sizes"), SIZES)
    for size in sizes.values():
        if problems.integer(size) < 1:
            problems.add(size, "expected a size of 1 or more")
    problems.text(entry.get("sizes_source"))
    model = TunedModel(
        name=name,
        sizes=MappingProxyType({key: problems.integer(size) for key, size in sizes.items()}),
        multi_latent_attention=problems.flag(entry.get("multi_latent_attention")),
        hybrid=problems.flag(entry.get("hybrid")),
    )
    settings = _read_settings(entry.get("settings"), problems)
    environment = _read_environment(entry.get("environment"), problems)
    recipes = problems.entries(entry.get("recipes")).items()
    return [_read_recipe(one, at, model, settings, environment, problems) for one, at in recipes]


def _read_recipe(
    name: str,
    node: Node,
    model: TunedModel,
    settings: Mapping[str, ConfigData],
    environment: Mapping[str, str],
    problems: Problems,
) -> TunedRecipe:
    entry = problems.fields(node, _RECIPE)
    gpus = problems.integer(entry.get("gpus"))
    if gpus < 1:
        problems.add(node, "expected 1 GPU or more")
    variant = entry.get("variant")
    return TunedRecipe(
        name=name,
        model=model,
        gpu=problems.text(entry.get("gpu")),
        gpus=gpus,
        precision=problems.text(entry.get("precision")),
        variant="" if variant is not None and variant.value == "" else problems.text(variant),
        source=problems.text(entry.get("source")),
        settings=MappingProxyType({**settings, **_read_settings(entry.get("settings"), problems)}),
        environment=MappingProxyType({**environment, **_read_environment(entry.get("environment"), problems)}),
    )


def _read_settings(node: Node | None, problems: Problems) -> Mapping[str, ConfigData]:
    """Values of config keys, in the form their type has."""
    keys = config_keys().keys
    settings: dict[str, ConfigData] = {}
    for name, value in problems.entries(node).items():
        if name not in keys:
            problems.add(value, f"{name} is no key{suggest(name, keys)}")
            continue
        try:
            settings[name] = fit(keys[name].type, problems.value(value))
        except ValueError as error:
            problems.add(value, f"{name}: {error}")
    return settings


def _read_environment(node: Node | None, problems: Problems) -> Mapping[str, str]:
    return {name: problems.text(value) for name, value in problems.entries(node).items()}
