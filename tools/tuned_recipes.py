"""Writes tables/generated/recipes.yaml: NVIDIA's tuned recipes of MoE pre-training, as settings by our names.

    python tools/tuned_recipes.py perf-recipes-main.json

The argument: a JSON list of the functions below ``megatron/bridge/perf_recipes``, each with ``name``, ``file``,
``line``, ``base`` (the call it starts from), ``set`` (literal assignments by Bridge path, and ``_calls``) and
``env_vars``, values as source text. What the calls and the bases set is in tools/recipe-sources.yaml. A value that is
no literal, and one that a call contradicts, is left out: unknown is better than wrong. Recipes whose base or model is
not in that file are left out too; the script lists them.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from three_walls.tables.config_keys import config_keys, keys_by_path
from three_walls.tables.config_values import fit
from three_walls.tables.environment_variables import allowed_variables

OUT = Path(__file__).parent.parent / "tables" / "generated" / "recipes.yaml"
SOURCES = Path(__file__).parent / "recipe-sources.yaml"
PREFIX = "bridge:src/megatron/bridge/perf_recipes"
BATCH = ("global_batch_size", "micro_batch_size")
NAME = re.compile(
    r"(?P<model>\w+?)_pretrain_(?P<gpus>\d+)gpu_(?P<gpu>[a-z0-9]+)_(?P<precision>[a-z0-9]+)(_(?P<variant>\w+))?_config"
)
WITH_BATCH = re.compile(r"_with_global_batch_size\((?P<base>\w+)\(\), (?P<size>\d+)\)")
CALL = re.compile(r"(?P<name>\w+)\(")
UNKNOWN = object()
HEADER = (
    "# Made by tools/tuned_recipes.py from Megatron-Bridge's perf_recipes (rules/sources.yaml: bridge) and",
    "# tools/recipe-sources.yaml; do not edit. Benchmarks of NVIDIA's. Per model: its sizes, what all its",
    "# recipes set alike, and per recipe what else it sets. A setting that is not here is unknown, not unset.",
)

Values = dict[str, Any]


def main(arguments: list[str]) -> None:
    (given,) = arguments
    recipes = json.loads(Path(given).read_text(encoding="utf-8"))
    sources = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))
    lines, skipped = write_table(recipes, sources)
    text = "\n".join(lines) + "\n"
    OUT.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{OUT}: {len(text)} bytes\nleft out: {' '.join(skipped)}\n")


def write_table(recipes: list[dict[str, Any]], sources: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Lines of the file, and the names of the MoE pre-training recipes that are not in it."""
    by_name = {recipe["name"]: recipe for recipe in recipes}
    entries: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []
    for name in sorted(by_name):
        match = NAME.fullmatch(name)
        if match is None:
            continue
        entry = read_recipe(by_name[name], match, by_name, sources)
        if entry is None:
            skipped.append(name)
        else:
            entries[name] = entry
    lines = [*HEADER, "models:"]
    for model in sorted({entry["model"] for entry in entries.values()}):
        of_model = {name: entry for name, entry in entries.items() if entry["model"] == model}
        lines += [f"  {model}:", *_write_model(sources["models"][model], of_model)]
    return lines, skipped


def _write_model(model: Mapping[str, Any], recipes: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    yield f"    sizes: {_flow(model['sizes'])}"
    yield f"    multi_latent_attention: {_flow(model['multi_latent_attention'])}"
    yield f"    hybrid: {_flow(model['hybrid'])}"
    yield f"    sizes_source: {_flow(model['source'])}"
    alike = {part: _shared([entry[part] for entry in recipes.values()]) for part in ("settings", "environment")}
    for part, values in alike.items():
        yield f"    {part}: {_flow(values)}"
    yield "    recipes:"
    for name, entry in recipes.items():
        yield f"      {name}:"
        for key, value in entry.items():
            if key in alike:
                value = {name: setting for name, setting in value.items() if name not in alike[key]}
            if key != "model":
                yield f"        {key}: {_flow(value)}"


def _shared(all_values: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What every mapping holds, with the same value."""
    first, *others = all_values
    return {key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)}


def read_recipe(
    recipe: Mapping[str, Any], match: re.Match[str], by_name: Mapping[str, Any], sources: Mapping[str, Any]
) -> dict[str, Any] | None:
    """One entry of the table; None where the model, the GPU or the base is not known."""
    known = (sources["models"], sources["gpus"], sources["precision"])
    if any(match[part] not in table for part, table in zip(("model", "gpu", "precision"), known, strict=True)):
        return None
    settings = resolve(recipe, by_name, sources)
    if settings is None:
        return None
    environment = resolve_environment(recipe, by_name, sources)
    return {
        "model": match["model"],
        "gpu": sources["gpus"][match["gpu"]],
        "gpus": int(match["gpus"]),
        "precision": sources["precision"][match["precision"]],
        "variant": match["variant"] or "",
        "source": f"{PREFIX}/{recipe['file']}:{recipe['line']}",
        "settings": dict(sorted(keep_relevant(settings, settings, sources["counts_with"]).items())),
        "environment": dict(sorted(keep_relevant(environment, settings, sources["counts_with"]).items())),
    }


def resolve(recipe: Mapping[str, Any], by_name: Mapping[str, Any], sources: Mapping[str, Any]) -> Values | None:
    """Knobs by key after the base, the recipe's assignments and the functions it calls."""
    settings = _resolve_base(recipe["base"], by_name, sources)
    if settings is None:
        return None
    literal: Values = {}
    for path, text in recipe["set"].items():
        if path == "comm_overlap":
            settings = {key: value for key, value in settings.items() if not _is_comm_overlap(key)}
            settings |= {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False}  # None there: off
            literal |= to_keys(_read_overlap(text), sources)
        elif path != "_calls":
            literal |= to_keys({path: _read_literal(text)}, sources)
    called: Values = {}
    for call in recipe["set"].get("_calls", ()):
        called |= to_keys(_effect_of(call, sources["helpers"]), sources)
    settings |= called | literal
    for key in literal.keys() & called.keys():
        if literal[key] != called[key]:
            settings[key] = UNKNOWN
    if settings.get("moe_flex_dispatcher_backend") == "hybridep" and _benchmark_finds_backend(recipe["set"]):
        settings["moe_hybridep_num_sms"] = literal.get("moe_hybridep_num_sms", _after_benchmark(called))
    return settings


def _benchmark_finds_backend(assigned: Mapping[str, Any]) -> bool:
    """Whether ``_benchmark_common`` is called once the backend is set: it sets SMs only where it finds HybridEP.

    Several ``_dev`` recipes set the backend after the call and keep the number of SMs that they started from.
    """
    names = list(assigned)
    backend = "model.moe_flex_dispatcher_backend"
    if not any("_benchmark_common" in call for call in assigned.get("_calls", ())):
        return False
    return backend not in names or names.index(backend) < names.index("_calls")


def _after_benchmark(called: Values) -> Any:
    """SMs for HybridEP after ``_benchmark_common``, which sets 32; a recipe's own number comes after it."""
    return 32 if called.get("moe_hybridep_num_sms", 32) == 32 else UNKNOWN


def _resolve_base(base: str, by_name: Mapping[str, Any], sources: Mapping[str, Any]) -> Values | None:
    if match := WITH_BATCH.fullmatch(base):
        settings = _resolve_base(f"{match['base']}()", by_name, sources)
        return None if settings is None else settings | {"global_batch_size": int(match["size"])}
    name = base.removesuffix("()")
    if name in by_name:
        return resolve(by_name[name], by_name, sources)
    if name in sources["bases"]:
        return to_keys(sources["bases"][name]["values"], sources)
    return None


def resolve_environment(
    recipe: Mapping[str, Any], by_name: Mapping[str, Any], sources: Mapping[str, Any]
) -> dict[str, str]:
    """Variables that the recipe sets, or its base where it sets none; those that a report may show."""
    variables = recipe["env_vars"]
    if not variables:
        match = WITH_BATCH.fullmatch(recipe["base"])
        base = match["base"] if match else recipe["base"].removesuffix("()")
        return resolve_environment(by_name[base], by_name, sources) if base in by_name else {}
    values = {key: _read_literal(text) for key, text in variables.items() if key != "**"}
    values |= sources["common_environment"] if "**" in variables else {}
    allowed = allowed_variables()
    return {key: str(value) for key, value in values.items() if value is not UNKNOWN and allowed.allows(key)}


def to_keys(values: Mapping[str, Any], sources: Mapping[str, Any]) -> Values:
    """Values by Bridge path -> those that are knobs, by our name. Raises ValueError for one of the wrong type."""
    settings: Values = {}
    paths = keys_by_path()
    for path, value in values.items():
        key = paths.get(path.replace("cuda_graph_modules", "cuda_graph_scope"))
        if key is None or key.name in sources["left_out"] or not (key.wall or key.name in BATCH):
            continue
        settings[key.name] = value if value is UNKNOWN else fit(key.type, _as_tuple(value))
    return settings


def keep_relevant(values: Mapping[str, Any], settings: Values, counts_with: Mapping[str, Any]) -> Values:
    """Known values, without those that have no effect with the recipe's other settings."""
    return {
        key: value
        for key, value in values.items()
        if value is not UNKNOWN
        and all(settings.get(other, UNKNOWN) in allowed for other, allowed in counts_with.get(key, {}).items())
    }


def _effect_of(call: str, helpers: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a call sets. Raises KeyError for an unknown function: to skip it would claim that it sets nothing."""
    match = CALL.match(call)
    name = match["name"] if match else call
    if name == "set_cuda_graph_modules":
        return {"model.cuda_graph_scope": ast.literal_eval(call[call.index("[") : call.rindex("]") + 1])}
    effect = dict(helpers[name])
    if "cross_entropy_impl='native'" in call:
        effect["model.cross_entropy_fusion_impl"] = "native"
    return effect


def _read_overlap(text: str) -> dict[str, Any]:
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call):
        return {}
    return {f"comm_overlap.{word.arg}": _read_literal(ast.unparse(word.value)) for word in call.keywords if word.arg}


def _read_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return UNKNOWN


def _is_comm_overlap(key: str) -> bool:
    spelling = config_keys().keys[key].bridge
    return spelling is not None and all(path.startswith("comm_overlap.") for path in spelling.paths)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _flow(value: Any) -> str:
    """A value as YAML in one line, mappings in their own order."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(element)}' for key, element in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        return value if re.fullmatch(r"[a-zA-Z][\w.-]*", value) else json.dumps(value)
    return json.dumps(value)


if __name__ == "__main__":
    main(sys.argv[1:])
