"""The cases of ``cases-0.3.1.yaml`` and the recipe they start from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from three_walls.bridge.merged_config import MergedConfig, config_of_paths

HERE = Path(__file__).parent
RELEASE = "0.3.1"
PLATFORM: dict[str, Any] = {
    "transformer_engine": 2012,
    "torch": 2015,
    "gpu_sm": 90,
    "gpu_name": "NVIDIA H100 80GB HBM3",
    "world_size": 8,
}
_LOADED = yaml.safe_load((HERE / f"cases-{RELEASE}.yaml").read_text(encoding="utf-8"))
RECIPE: str = _LOADED["recipe"]


@dataclass(frozen=True)
class BridgeCase:
    """Overrides, what Bridge does with them, and what our checker finds."""

    name: str
    overrides: tuple[str, ...]
    passes: bool
    message: str
    stricter: str
    checker_message: str
    prepare: tuple[str, ...]
    starts_with: dict[str, Any]

    @property
    def base(self) -> MergedConfig:
        """What the overrides are applied to."""
        recipe = recipe_config()
        return replace(recipe, values={**recipe.values, **self.starts_with})


@cache
def recipe_config() -> MergedConfig:
    """The recipe of the cases on their machine."""
    dump = yaml.safe_load((HERE / f"qwen3-30b-a3b-{RELEASE}.yaml").read_text(encoding="utf-8"))
    return replace(config_of_paths(dump), environment_is_known=True, platform=PLATFORM)


@cache
def not_runnable() -> dict[str, dict[str, str]]:
    """Cases of rules that Bridge refuses without their edits too, by name: its message, and why they stay."""
    loaded: dict[str, dict[str, str]] = yaml.safe_load(
        (HERE / f"not-runnable-{RELEASE}.yaml").read_text(encoding="utf-8")
    )
    return loaded


CASES = tuple(
    BridgeCase(
        name=name,
        overrides=tuple(case["overrides"]),
        passes=case["passes"],
        message=case.get("message", ""),
        stricter=case.get("stricter", ""),
        checker_message=case.get("checker_message", case.get("message", "")),
        prepare=tuple(case.get("prepare", ())),
        starts_with=case.get("starts_with", {}),
    )
    for name, case in _LOADED["cases"].items()
)
