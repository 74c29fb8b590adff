"""The tuned recipe nearest to a run. Context for the plan: what was fast for others, never what this run would gain.

Near is a recipe whose model has the run's shape: hidden size, experts, top-k and expert FFN each within one factor.
Among those, in this order: the run's GPU family, else the nearest generation and the same kind of NVLink domain; the
model at the least distance; the nearest number of GPUs (as a ratio); the nearest precision; the plain recipe before
its variants; the name. So the order is total, and that of the recipes in the file does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from three_walls.model.buckets import Wall
from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.fact import FactSheet
from three_walls.model.finding import PlanStep
from three_walls.model.report import KnownGoodRecipe
from three_walls.overrides.recipe_differences import compare_settings
from three_walls.tables.hardware import gpu_models
from three_walls.tables.thresholds import RecipeLimits, recipe_limits
from three_walls.tables.tuned_recipes import SIZES, TunedModel, TunedRecipe, tuned_recipes

_LAYERS = "num_layers"
_FP8_RECIPES = {
    "delayed": "fp8 delayed scaling",
    "tensorwise": "fp8 current scaling",
    "blockwise": "fp8 blockwise",
    "mxfp8": "mxfp8",
}
_SIZE_NAMES = {
    "hidden_size": "hidden size",
    "num_layers": "layers",
    "num_moe_experts": "experts",
    "moe_router_topk": "top-k",
    "moe_ffn_hidden_size": "expert FFN",
}

Rank = tuple[float | bool | str, ...]


def find_nearest_recipe(
    config: RunConfig,
    facts: FactSheet,
    plan: Sequence[PlanStep] = (),
    wall: Wall | None = None,
    recipes: Callable[[], Collection[TunedRecipe]] = tuned_recipes,
    limits: RecipeLimits | None = None,
) -> tuple[KnownGoodRecipe | None, str]:
    """The recipe nearest to the run beside the run's settings, or None and why there is none.

    ``wall``: the verdict's, whose knobs come first among the differences. ``recipes`` is called only once the run is
    known well enough to look.
    """
    limits = limits or recipe_limits()
    family = facts.get("gpu.family").value
    sizes = sizes_of(config)
    if complaint := _complain(config, sizes, family, limits):
        return None, complaint
    known = {key: size for key, size in sizes.items() if size is not None}
    generation = limits.generations[str(family)]
    gpus = facts.number("world_size")
    table = recipes()
    near = [one for one in table if _is_near(one.model, known, limits)]
    if not near:
        return None, f"no recipe is near: {_explain_none(known, table, limits)}"

    def rank(recipe: TunedRecipe) -> Rank:
        return (
            recipe.gpu != family,
            abs(limits.generations[recipe.gpu] - generation),
            _nvlink_domain(recipe.gpu) != _nvlink_domain(str(family)),
            round(model_distance(recipe.model, config, known, limits), 9),
            round(_log_ratio(recipe.gpus, gpus), 9) if gpus else 0.0,
            _precision_distance(recipe.precision, precision_of(config)),
            recipe.variant != "",
            recipe.name,
        )

    recipe = min(near, key=rank)
    differences, same, unknown = compare_settings(recipe, config, facts, plan, wall, limits)
    found = KnownGoodRecipe(
        name=recipe.name,
        model=recipe.model.name,
        gpu=recipe.gpu,
        gpus=recipe.gpus,
        precision=recipe.precision,
        distance_note=_describe(recipe, config, known, str(family), gpus, limits),
        source=recipe.source,
        differences=differences,
        same_count=same,
        unknown_count=unknown,
    )
    return found, ""


def sizes_of(config: RunConfig) -> Mapping[str, int | None]:
    """The sizes that identify the run's model; an unset expert FFN is the dense layers' one, as in Megatron Core."""
    sizes = {key: config.size(key) for key in SIZES}
    if sizes["moe_ffn_hidden_size"] is None:
        sizes["moe_ffn_hidden_size"] = config.size("ffn_hidden_size")
    return sizes


def precision_of(config: RunConfig) -> str | None:
    """Precision as recipes are named by; None where it is not known."""
    if config.get("fp4"):
        return "nvfp4"
    if config.get("fp8"):
        return _FP8_RECIPES.get(str(config.get("fp8_recipe")))
    return "bf16" if config.get("bf16") is True else None


def model_distance(model: TunedModel, config: RunConfig, sizes: Mapping[str, int], limits: RecipeLimits) -> float:
    """Sum of |ln(size / size)|, layers weighed less, and a factor for every kind that is known to differ."""
    weights = {_LAYERS: limits.layers_weight}
    distance = sum(weights.get(key, 1.0) * _log_ratio(model.sizes[key], sizes[key]) for key in SIZES)
    return distance + math.log(limits.other_kind_ratio) * len(_other_kinds(model, config))


def _complain(
    config: RunConfig, sizes: Mapping[str, int | None], family: ConfigData, limits: RecipeLimits
) -> str | None:
    """Why no recipe can be looked for; None if one can."""
    if config.knows("num_moe_experts") and config.get("num_moe_experts") is None:
        return "the model has no experts, and the recipes at hand are of mixture-of-experts models"
    missing = [key for key, size in sizes.items() if size is None]
    if missing:
        return f"the model is not known well enough to look for one: {', '.join(missing)} missing from the config"
    if family is None:
        return "the GPU is not known, so no recipe is nearer than another"
    return None if family in limits.generations else f"no generation is known of {family}"


def _is_near(model: TunedModel, sizes: Mapping[str, int], limits: RecipeLimits) -> bool:
    return not _far_sizes(model, sizes, limits)


def _far_sizes(model: TunedModel, sizes: Mapping[str, int], limits: RecipeLimits) -> tuple[str, ...]:
    """Sizes that differ by more than the limit; the number of layers never does."""
    farthest = math.log(limits.largest_size_ratio) + 1e-9
    return tuple(key for key in SIZES if key != _LAYERS and _log_ratio(model.sizes[key], sizes[key]) > farthest)


def _explain_none(sizes: Mapping[str, int], recipes: Iterable[TunedRecipe], limits: RecipeLimits) -> str:
    """What keeps the closest model from being near."""
    models = {one.model.name: one.model for one in recipes}
    if not models:
        return "there are none"

    def rank(model: TunedModel) -> Rank:
        return (sum(_log_ratio(model.sizes[key], sizes[key]) for key in SIZES if key != _LAYERS), model.name)

    closest = min(models.values(), key=rank)
    far = ", ".join(
        f"{_SIZE_NAMES[key]} {sizes[key]} against {closest.sizes[key]}" for key in _far_sizes(closest, sizes, limits)
    )
    return f"the closest model, {closest.name}, differs by more than a factor of {limits.largest_size_ratio:g} in {far}"


def _other_kinds(model: TunedModel, config: RunConfig) -> tuple[str, ...]:
    """In which kind the models are known to differ."""
    kinds: list[str] = []
    if config.knows("multi_latent_attention"):
        latent = bool(config.get("multi_latent_attention"))
        if latent != model.multi_latent_attention:
            kinds.append(f"multi-latent attention {_yes(latent)} against {_yes(model.multi_latent_attention)}")
    keys = ("hybrid_override_pattern", "experimental_attention_variant")
    if any(config.knows(key) for key in keys):
        hybrid = any(config.get(key) is not None for key in keys)
        if hybrid != model.hybrid:
            kinds.append(f"layers without plain attention {_yes(hybrid)} against {_yes(model.hybrid)}")
    return tuple(kinds)


def _describe(
    recipe: TunedRecipe,
    config: RunConfig,
    sizes: Mapping[str, int],
    family: str,
    gpus: float | None,
    limits: RecipeLimits,
) -> str:
    """What is like the run and what is not, the run's first, in one line."""
    apart = abs(limits.generations[recipe.gpu] - limits.generations[family])
    other = [
        f"{_SIZE_NAMES[k]} {sizes[k]} against {recipe.model.sizes[k]}"
        for k in SIZES
        if sizes[k] != recipe.model.sizes[k]
    ]
    other += _other_kinds(recipe.model, config)
    precision = precision_of(config)
    if recipe.gpu == family:
        gpu = f"the same GPU, {family}"
    elif apart == 0:
        gpu = f"no recipe for {family}: {recipe.gpu} is of its generation"
    else:
        gpu = f"no recipe for {family}: {recipe.gpu} is {apart} generation{'s' if apart > 1 else ''} away"
    return "; ".join(
        (
            gpu,
            f"model: {', '.join(other)}" if other else "a model of the same shape",
            "how many GPUs the run has is unknown" if not gpus else f"{gpus:.0f} GPUs against {recipe.gpus}",
            f"{precision or 'unknown precision'} against {recipe.precision}"
            if precision != recipe.precision
            else f"{recipe.precision} in both",
        )
    )


def _precision_distance(one: str, other: str | None) -> int:
    """0 alike, 1 both FP8 of some kind, 2 else."""
    if one == other:
        return 0
    return 1 if other is not None and "fp8" in one and "fp8" in other else 2


def _nvlink_domain(family: str) -> int | None:
    return next((model.nvlink_domain_gpus for model in gpu_models() if model.family == family), None)


def _log_ratio(one: float, other: float) -> float:
    return abs(math.log(one / other))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
