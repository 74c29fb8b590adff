"""NVIDIA's tuned recipes for MoE pre-training, and the one nearest to a run as the report holds it.

They are in ``tables/generated/recipes.yaml``, made by ``tools/tuned_recipes.py``, which is read only when a recipe is
searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from three_walls.lib.load_documents import Loc, Text, Value, between, load_table, raise_contradictions, suggest
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import GENERATED_DIR
from three_walls.tables.config_keys import config_keys
from three_walls.tables.config_values import fit

RECIPES_FILE = GENERATED_DIR / "recipes.yaml"


@dataclass(frozen=True, slots=True)
class TunedModel:
    """The model that recipes are for."""

    name: str
    sizes: Mapping[str, int]
    """By the keys of :data:`SIZES`."""
    multi_latent_attention: bool
    hybrid: bool
    """Whether some layers are Mamba or linear attention."""


def _fit_settings(settings: Mapping[str, ConfigData]) -> Mapping[str, ConfigData]:
    """``settings`` with every value in the form of its key's type."""
    keys = config_keys().keys
    fitted: dict[str, ConfigData] = {}
    wrong: list[tuple[Loc, str]] = []
    for name, value in settings.items():
        if name not in keys:
            wrong.append(((name,), f"{name} is no key{suggest(name, keys)}"))
            continue
        try:
            fitted[name] = fit(keys[name].type, value)
        except ValueError as error:
            wrong.append(((name,), f"{name}: {error}"))
    raise_contradictions(wrong)
    return fitted


Settings = Annotated[Mapping[str, Value], AfterValidator(_fit_settings)]
Size = Annotated[int, between(1, 999_999)]


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Config keys that identify a model."""

    hidden_size: Size
    num_layers: Size
    num_moe_experts: Size
    moe_router_topk: Size
    moe_ffn_hidden_size: Size


SIZES = tuple(size.name for size in fields(ModelSizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRow:
    """A recipe in the file, with what it sets in addition to the settings of its model."""

    gpu: Text
    """Family, as in the hardware table."""
    gpus: Size
    precision: Text
    variant: str
    """What distinguishes it from the plain recipe of the same model, GPUs and precision; empty for the plain one."""
    source: Text
    settings: Settings
    environment: Mapping[str, Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRecipe(RecipeRow):
    """The same with all its settings. One that it does not state is unknown; None means unset."""

    name: str
    model: TunedModel


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in the file, with the settings that all its recipes share."""

    sizes: ModelSizes
    multi_latent_attention: bool
    hybrid: bool
    sizes_source: Text
    settings: Settings
    environment: Mapping[str, Text]
    recipes: Mapping[str, RecipeRow]


@dataclass(frozen=True, slots=True)
class RecipeTable:
    """``recipes.yaml``, by model."""

    models: Mapping[str, ModelRow]


@cache
def tuned_recipes() -> tuple[TunedRecipe, ...]:
    """The recipes that ship with the program."""
    return load_tuned_recipes(RECIPES_FILE)


def load_tuned_recipes(path: Path) -> tuple[TunedRecipe, ...]:
    """The recipes in ``path``, each with the settings of its model; RuleBaseError lists every error."""
    recipes = []
    for name, row in load_table(path, RecipeTable).models.items():
        model = TunedModel(name, asdict(row.sizes), row.multi_latent_attention, row.hybrid)
        for recipe_name, recipe in row.recipes.items():
            values = asdict(recipe)
            values["settings"] = {**row.settings, **recipe.settings}
            values["environment"] = {**row.environment, **recipe.environment}
            recipes.append(TunedRecipe(name=recipe_name, model=model, **values))
    return tuple(recipes)


BENCHMARK_SETTING, BATCH_SIZE = "benchmark setting", "batch size"


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
