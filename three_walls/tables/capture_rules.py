"""How to capture and what for: ``tables/capture.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.model.config import ConfigData
from three_walls.resources import TABLES_DIR
from three_walls.tables.config_keys import config_keys
from three_walls.tables.config_values import is_allowed
from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.yaml_nodes import Node

BRIDGE, MEGATRON_LM = "bridge", "megatron-lm"
FRAMEWORKS = (BRIDGE, MEGATRON_LM)
CAPTURE_FILE = TABLES_DIR / "capture.yaml"


@dataclass(frozen=True, slots=True)
class NsysOption:
    """An option of ``nsys profile``; the file's header says what the fields mean."""

    option: str
    when: str
    since: str
    reason: str


@dataclass(frozen=True, slots=True)
class Capability:
    """What a capture may hold, and what rests on it."""

    name: str
    title: str
    claims: tuple[str, ...]
    remedy: str
    nsys: tuple[str, ...]
    settings: Mapping[str, ConfigData]
    frameworks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaptureRules:
    first_step: int
    last_step: int
    minimum_steps: int
    maximum_overhead_fraction: float
    """Share of the kept steps that the profiler may hold up the program for, to be called little."""
    nsys: tuple[NsysOption, ...]
    capabilities: Mapping[str, Capability]
    dropped: tuple[re.Pattern[str], ...]
    usual: tuple[re.Pattern[str], ...]


@cache
def capture_rules() -> CaptureRules:
    """The rules that ship with the program."""
    return load_capture_rules(CAPTURE_FILE)


def load_capture_rules(path: Path) -> CaptureRules:
    """The rules in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    names = ("first_step", "last_step", "minimum_steps", "maximum_overhead_fraction")
    top = problems.fields(load_strict(path, problems), (*names, "nsys", "capabilities", "dropped", "usual"))
    rules = CaptureRules(
        first_step=problems.integer(top.get("first_step")),
        last_step=problems.integer(top.get("last_step")),
        minimum_steps=problems.integer(top.get("minimum_steps")),
        maximum_overhead_fraction=problems.number(top.get("maximum_overhead_fraction"), 0.0, 1.0),
        nsys=tuple(_option(node, problems) for node in problems.items(top.get("nsys"))),
        capabilities={
            name: _capability(name, node, problems) for name, node in problems.entries(top.get("capabilities")).items()
        },
        dropped=tuple(problems.pattern(node) for node in problems.items(top.get("dropped"))),
        usual=tuple(problems.pattern(node) for node in problems.items(top.get("usual"))),
    )
    problems.raise_if_any()
    return rules


def _option(node: Node, problems: Problems) -> NsysOption:
    row = problems.fields(node, ("option", "when", "since", "reason"))
    return NsysOption(
        option=problems.text(row.get("option")),
        when=problems.choice(row.get("when"), ("always", "memory")),
        since=problems.text(row.get("since")),
        reason=problems.text(row.get("reason")),
    )


def _capability(name: str, node: Node, problems: Problems) -> Capability:
    row = problems.fields(node, ("title", "claims", "remedy"), ("nsys", "settings", "frameworks"))
    settings = {key: problems.value(value) for key, value in problems.entries(row.get("settings")).items()}
    keys = config_keys().keys
    for key, value in settings.items():
        if key not in keys:
            problems.add(row["settings"], f"{key} is no config key{suggest(key, keys)}")
        elif not is_allowed(keys[key], value):
            problems.add(row["settings"], f"{value} is no value of {key}")
    return Capability(
        name=name,
        title=problems.text(row.get("title")),
        claims=problems.texts(row.get("claims")),
        remedy=problems.text(row.get("remedy")),
        nsys=problems.texts(row.get("nsys")) if "nsys" in row else (),
        settings=settings,
        frameworks=tuple(problems.choice(one, FRAMEWORKS) for one in problems.items(row["frameworks"]))
        if "frameworks" in row
        else FRAMEWORKS,
    )
