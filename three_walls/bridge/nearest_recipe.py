"""The tuned recipe nearest to a run, and how its settings differ.

The recipe is context for the plan: what was fast elsewhere, not what this run would gain.

A recipe is near if its model has the run's shape: hidden size, experts, top-k and expert FFN each differ by at most a
factor. Near recipes are compared by, in this order: GPU family, GPU generation, kind of NVLink domain, distance of the
model, ratio of the numbers of GPUs, precision, the plain recipe before its variants, name. The order is total, so the
order of the recipes in the file does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from three_walls.advice.finding import PlanStep
from three_walls.advice.format.conditions import same
from three_walls.bridge.tuned_recipes import (
    BATCH_SIZE,
    BENCHMARK_SETTING,
    SIZES,
    KnownGoodRecipe,
    RecipeDifference,
    TunedModel,
    TunedRecipe,
    tuned_recipes,
)
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.text import count_of
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.buckets import Wall
from three_walls.tables.config_keys import config_keys
from three_walls.tables.hardware import gpu_models

_FAMILIES = (
    ("A100", "A100-40GB", "A100-PCIe", "A100-PCIe-40GB", "A800"),
    ("L40S",),
    ("H100", "H100-NVL", "H100-PCIe", "H200", "H200-NVL", "H800", "H20", "GH200", "GH200-144GB"),
    ("B200", "GB200", "RTX-PRO-6000"),
    ("B300", "GB300"),
    ("VR200",),
)
"""GPU families (``tables/hardware.yaml``) by generation, older first."""
GENERATIONS = {family: number for number, families in enumerate(_FAMILIES) for family in families}
"""GPU family -> number of its generation. Equal ones are near, the next one is one step away."""
_LARGEST_SIZE_RATIO = 2.0
"""A recipe is near only if hidden size, experts, top-k and expert FFN each differ by no more than this factor. Chosen,
not measured: within it Qwen3-30B and 235B are related, as are DeepSeek-V3 and Kimi K2; Mixtral (8 experts) is related
to none in the table."""
_LAYERS_WEIGHT = 0.25
"""Weight of the number of layers in the distance. It has little influence on how one layer is best run, and test runs
have few layers, so it never decides what is near."""
_OTHER_KIND_RATIO = 2.0
"""Factor in size that another kind of attention (MLA) or of layers (Mamba, linear attention) counts as."""
_BENCHMARK_SETTINGS = ("check_for_nan_in_grad", "check_for_nan_in_loss", "moe_router_force_load_balancing")
"""Settings that only benchmarks use: they save work that production needs, or change what is learned."""
BATCH_SETTINGS = ("global_batch_size", "micro_batch_size")
"""Settings that are shown with a mark: the global batch changes what is learned, and the micro batch follows memory."""
_NEWER_NAMES = {"cuda_graph_scope": "cuda_graph_modules"}
"""Key of a recipe -> key that holds the same in newer releases."""
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
_WALLS = tuple(Wall)

SortKey = tuple[float | bool | str, ...]


def find_nearest_recipe(
    config: RunConfig,
    facts: FactSheet,
    plan: Sequence[PlanStep] = (),
    wall: Wall | None = None,
    recipes: Callable[[], Collection[TunedRecipe]] = tuned_recipes,
) -> tuple[KnownGoodRecipe | None, str]:
    """The nearest recipe and how it differs from the run, or None and the reason.

    Settings of ``wall``, the verdict's, come first among the differences. ``recipes`` is called only if enough of the
    run is known to search.
    """
    family = facts.get("gpu.family").value
    sizes = sizes_of(config)
    if reason := _why_not_searched(config, sizes, family):
        return None, reason
    known = {key: size for key, size in sizes.items() if size is not None}
    generation = GENERATIONS[str(family)]
    gpus = facts.number("world_size")
    table = recipes()
    near = [recipe for recipe in table if not _far_sizes(recipe.model, known)]
    if not near:
        return None, _explain_none_near(known, table)

    def distance(recipe: TunedRecipe) -> SortKey:
        return (
            recipe.gpu != family,
            abs(GENERATIONS[recipe.gpu] - generation),
            _nvlink_domain(recipe.gpu) != _nvlink_domain(str(family)),
            round(model_distance(recipe.model, config, known), 9),
            round(_log_ratio(recipe.gpus, gpus), 9) if gpus else 0.0,
            _precision_distance(recipe.precision, precision_of(config)),
            recipe.variant != "",
            recipe.name,
        )

    recipe = min(near, key=distance)
    differences, same_count, unknown_count = _compare_settings(recipe, config, facts, plan, wall)
    nearest = KnownGoodRecipe(
        name=recipe.name,
        model=recipe.model.name,
        gpu=recipe.gpu,
        gpus=recipe.gpus,
        precision=recipe.precision,
        distance_note=_describe_distance(recipe, config, known, str(family), gpus),
        source=recipe.source,
        differences=differences,
        same_count=same_count,
        unknown_count=unknown_count,
    )
    return nearest, ""


def sizes_of(config: RunConfig) -> Mapping[str, int | None]:
    """The sizes that identify the run's model; an unset expert FFN is that of the dense layers, as in Megatron Core."""
    sizes = {key: config.size(key) for key in SIZES}
    if sizes["moe_ffn_hidden_size"] is None:
        sizes["moe_ffn_hidden_size"] = config.size("ffn_hidden_size")
    return sizes


def precision_of(config: RunConfig) -> str | None:
    """The run's precision as recipes name it; None where it is not known."""
    if config.get("fp4"):
        return "nvfp4"
    if config.get("fp8"):
        return _FP8_RECIPES.get(str(config.get("fp8_recipe")))
    return "bf16" if config.get("bf16") is True else None


def model_distance(model: TunedModel, config: RunConfig, sizes: Mapping[str, int]) -> float:
    """Sum of |ln(size / size)|, with layers weighted less, and a factor for every kind that is known to differ."""
    weights = {_LAYERS: _LAYERS_WEIGHT}
    distance = sum(weights.get(key, 1.0) * _log_ratio(model.sizes[key], sizes[key]) for key in SIZES)
    return distance + math.log(_OTHER_KIND_RATIO) * len(_other_kinds(model, config))


def _why_not_searched(config: RunConfig, sizes: Mapping[str, int | None], family: ConfigData) -> str:
    """Why no recipe can be searched for; empty if one can."""
    if config.knows("num_moe_experts") and config.get("num_moe_experts") is None:
        return "the model has no experts, and the known recipes are for mixture-of-experts models"
    missing = [key for key, size in sizes.items() if size is None]
    if missing:
        return f"the model is not known well enough: {', '.join(missing)} missing from the config"
    if family is None:
        return "the GPU is not known"
    return "" if family in GENERATIONS else f"the generation of {family} is not known"


def _far_sizes(model: TunedModel, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Sizes that differ by more than the limit; the number of layers never does."""
    farthest = math.log(_LARGEST_SIZE_RATIO) + 1e-9
    return tuple(key for key in SIZES if key != _LAYERS and _log_ratio(model.sizes[key], sizes[key]) > farthest)


def _explain_none_near(sizes: Mapping[str, int], recipes: Iterable[TunedRecipe]) -> str:
    """How the closest model is too far away."""
    models = {recipe.model.name: recipe.model for recipe in recipes}
    if not models:
        return "there are no recipes to compare with"
    compared = [key for key in SIZES if key != _LAYERS]
    closest = min(
        models.values(),
        key=lambda model: (sum(_log_ratio(model.sizes[key], sizes[key]) for key in compared), model.name),
    )
    far = _differing_sizes(_far_sizes(closest, sizes), sizes, closest)
    return (
        f"no recipe is near: the closest model, {closest.name}, differs by more than a factor of "
        f"{_LARGEST_SIZE_RATIO:g} in {', '.join(far)}"
    )


def _differing_sizes(keys: Iterable[str], sizes: Mapping[str, int], model: TunedModel) -> list[str]:
    return [f"{_SIZE_NAMES[key]} (run {sizes[key]}, recipe {model.sizes[key]})" for key in keys]


def _other_kinds(model: TunedModel, config: RunConfig) -> tuple[str, ...]:
    """Kinds of layers in which the models are known to differ."""
    kinds: list[str] = []
    if config.knows("multi_latent_attention"):
        latent = bool(config.get("multi_latent_attention"))
        if latent != model.multi_latent_attention:
            kinds.append(f"multi-latent attention ({_describe_sides(latent)})")
    keys = ("hybrid_override_pattern", "experimental_attention_variant")
    if any(config.knows(key) for key in keys):
        hybrid = any(config.get(key) is not None for key in keys)
        if hybrid != model.hybrid:
            kinds.append(f"layers without standard attention ({_describe_sides(hybrid)})")
    return tuple(kinds)


def _describe_sides(is_in_run: bool) -> str:
    return "run yes, recipe no" if is_in_run else "run no, recipe yes"


def _describe_distance(
    recipe: TunedRecipe,
    config: RunConfig,
    sizes: Mapping[str, int],
    family: str,
    gpus: float | None,
) -> str:
    """What the run and the recipe have in common and how they differ, in one line."""
    generations = abs(GENERATIONS[recipe.gpu] - GENERATIONS[family])
    if recipe.gpu == family:
        gpu = f"the same GPU, {family}"
    elif generations == 0:
        gpu = f"no recipe for {family}; {recipe.gpu} is of the same generation"
    else:
        gpu = f"no recipe for {family}; {recipe.gpu} is {count_of(generations, 'generation')} away"
    differing = _differing_sizes((key for key in SIZES if sizes[key] != recipe.model.sizes[key]), sizes, recipe.model)
    differing += _other_kinds(recipe.model, config)
    model = f"a model that differs in {', '.join(differing)}" if differing else "a model of the same shape"
    scale = f"run on {gpus:.0f} GPUs, recipe on {recipe.gpus}" if gpus else "the run's number of GPUs is not known"
    run_precision = precision_of(config)
    precision = f"{run_precision} in both"
    if run_precision != recipe.precision:
        precision = f"run in {run_precision or 'unknown precision'}, recipe in {recipe.precision}"
    return f"{gpu}; {model}; {scale}; {precision}"


def _compare_settings(
    recipe: TunedRecipe,
    config: RunConfig,
    facts: FactSheet,
    plan: Sequence[PlanStep],
    wall: Wall | None,
) -> tuple[tuple[RecipeDifference, ...], int, int]:
    """The differences, the number of equal settings, and the number of settings that are unknown in the run.

    Order of the differences: settings that the plan edits; settings of the verdict's wall, of the other walls, of no
    wall (environment variables); marked ones, which do not make a run faster. Equals are ordered by name.
    """
    planned = {(edit.kind, edit.key) for step in plan for edit in step.edits}
    differences: list[RecipeDifference] = []
    same_count = unknown_count = 0
    for kind, key, run_value, recipe_value, is_known in _pair_settings(recipe, config, facts):
        if not is_known:
            unknown_count += 1
        elif same(_resolve_unset(key, run_value), _resolve_unset(key, recipe_value)):
            same_count += 1
        else:
            in_plan = any((kind, name) in planned for name in (key, _NEWER_NAMES.get(key, key)))
            mark = BENCHMARK_SETTING if key in _BENCHMARK_SETTINGS else ""
            mark = mark or (BATCH_SIZE if key in BATCH_SETTINGS else "")
            differences.append(RecipeDifference(key, kind, run_value, recipe_value, in_plan, mark))

    differences.sort(key=lambda row: (not row.in_plan, row.mark != "", _place_of_wall(row, wall), row.key))
    return tuple(differences), same_count, unknown_count


def _pair_settings(
    recipe: TunedRecipe, config: RunConfig, facts: FactSheet
) -> Iterator[tuple[str, str, ConfigData, ConfigData, bool]]:
    """Kind, key, the run's value, the recipe's value, whether the run's value is known."""
    for key, value in recipe.settings.items():
        newer = _NEWER_NAMES.get(key)
        name = newer if newer is not None and config.get(newer) is not None else key
        yield "config", key, config.get(name), value, config.knows(name)
    for variable, value in recipe.environment.items():
        fact = facts.get(f"env.{variable}")
        yield "env", variable, None if fact.value is None else str(fact.value), value, not fact.is_missing


def _resolve_unset(key: str, value: ConfigData) -> ConfigData:
    """``value``; for an unset one Megatron-LM's default, or without one an empty list or a switch that is off."""
    known = config_keys().keys.get(key)
    if value is not None or known is None:
        return value
    flag = known.megatron_lm
    if flag is not None and flag.has_default and flag.default is not None:
        return flag.default
    return False if known.type == "bool" else () if known.type == "list" else None


def _place_of_wall(difference: RecipeDifference, first: Wall | None) -> int:
    known = config_keys().keys.get(difference.key)
    if difference.kind != "config" or known is None or known.wall is None:
        return len(_WALLS)
    return -1 if known.wall == first else _WALLS.index(Wall(known.wall))


def _precision_distance(precision: str, other: str | None) -> int:
    """0 for the same, 1 for two kinds of FP8, 2 otherwise."""
    if precision == other:
        return 0
    return 1 if other is not None and "fp8" in precision and "fp8" in other else 2


def _nvlink_domain(family: str) -> int | None:
    return next((model.nvlink_domain_gpus for model in gpu_models() if model.family == family), None)


def _log_ratio(size: float, other: float) -> float:
    return abs(math.log(size / other))
