"""Writes tables/generated/bridge/recipe-overlaps/: the comm_overlap section of every recipe of Megatron-Bridge.

    PYTHONPATH=<unpacked wheels> <interpreter with Megatron-Bridge's dependencies> tools/recipe_overlaps.py 0.6.2

It runs in the interpreter that has Megatron-Bridge, on a CPU (three_walls/bridge/real_bridge/stubs.py replaces the
rest). Every recipe is made by its own function, with a model of one shape instead of the hub's: no recipe reads the
shape for its comm_overlap. Recipes are grouped by the fields that their section sets; null is no section. A
recipe that cannot be made this way is left out, because unknown is better than wrong; the script lists those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tables" / "generated" / "bridge" / "recipe-overlaps"
sys.path.insert(0, str(ROOT / "three_walls" / "bridge" / "real_bridge"))

PACKAGES = ("megatron.bridge.recipes", "megatron.bridge.perf_recipes")
"""Where recipes are; the second came with 0.6."""
REQUEST = {"gpu_name": "NVIDIA H100 80GB HBM3", "gpu_major": 9, "transformer_engine": "2.14.0"}
HEADER = (
    "# Made by tools/recipe_overlaps.py from Megatron-Bridge's own recipe functions; do not edit. Fields that the",
    "# comm_overlap section of the recipes sets, or null where they have none; tp_comm_overlap_cfg by its class.",
)


def main(release: str) -> None:
    """Write the file of one release."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    from stubs import install_stubs

    install_stubs(REQUEST)
    from megatron.bridge.package_info import __version__

    # Within a git repository Bridge appends that repository's commit.
    assert __version__.partition("+")[0] == release, f"this interpreter has Megatron-Bridge {__version__}"
    _replace_model_hub()
    groups: dict[str, list[str]] = {}
    left_out = []
    for name, recipe in sorted(_find_recipes()):
        os.environ["WORLD_SIZE"] = "8"
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                section = _read_section(recipe().comm_overlap)
        except Exception as error:  # a recipe may raise anything where it meets the replaced model
            left_out.append(f"{name}: {type(error).__name__}: {error}"[:160])
        else:
            groups.setdefault(json.dumps(section), []).append(name)
    listed = [{"section": json.loads(text), "recipes": names} for text, names in sorted(groups.items())]
    text = yaml.safe_dump({"bridge": release, "groups": listed}, sort_keys=False, width=118, default_flow_style=None)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{release}.yaml").write_text("\n".join([*HEADER, text]), encoding="utf-8")
    sys.stdout.write("\n".join([f"{sum(map(len, groups.values()))} recipes; left out:", *left_out, ""]))


def _find_recipes() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every recipe function by its name, without those that need arguments."""
    from stubs import add_bare_package

    found: dict[str, Callable[[], Any]] = {}
    for package in PACKAGES:
        try:
            root = Path(next(iter(importlib.import_module(package).__path__)))
        except ModuleNotFoundError:
            continue
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            for depth in range(1, len(parts)):
                add_bare_package(".".join((package, *parts[:depth])))
            if path.name == "__init__.py":
                continue
            try:
                module = importlib.import_module(".".join((package, *parts)))
            except Exception as error:  # a family may need a package that is not installed
                sys.stdout.write(f"{'.'.join(parts)}: {type(error).__name__}: {error}\n")
                continue
            for name, value in vars(module).items():
                if name.endswith("_config") and name[0] != "_" and _is_recipe(value):
                    found.setdefault(name, value)
    yield from found.items()


def _is_recipe(value: Any) -> bool:
    """Whether it is a function of a recipe module that can be called without arguments."""
    if not inspect.isfunction(value) or not value.__module__.startswith(PACKAGES):
        return False
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(value).parameters.values()
    return all(given.default is not inspect.Parameter.empty or given.kind in open_ended for given in parameters)


def _read_section(section: Any) -> dict[str, Any] | None:
    """Fields that differ from their defaults; tp_comm_overlap is always given."""
    if section is None:
        return None
    found: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name, None)
        is_set = field.init and not field.name.startswith("_") and value != field.default
        if field.name == "tp_comm_overlap" or is_set:
            is_plain = value is None or isinstance(value, (bool, int, float, str))
            found[field.name] = value if is_plain else type(value).__name__
    return found


def _replace_model_hub() -> None:
    """Models without the hub's sizes: a provider of Megatron-Bridge's with the sizes that it needs to be made."""
    from megatron.bridge.models.conversion.auto_bridge import AutoBridge
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    def make(*_: Any, **__: Any) -> Any:
        sizes = {"num_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_moe_experts": 128}
        return GPTModelProvider(**sizes, vocab_size=151936)

    class Hub:
        to_megatron_provider = staticmethod(make)

    AutoBridge.from_hf_pretrained = classmethod(lambda *_, **__: Hub())
    AutoBridge.from_hf_config = classmethod(lambda *_, **__: Hub())


if __name__ == "__main__":
    main(*sys.argv[1:])
