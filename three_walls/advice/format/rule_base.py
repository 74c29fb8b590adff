"""The rules and warnings that a run is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.advice.format.load_rules import load_rules
from three_walls.advice.format.rule import Rule
from three_walls.advice.judge_warnings import WarningRule, load_warnings
from three_walls.lib.fact import FactDefinition
from three_walls.lib.resources import RULES_DIR


@dataclass(frozen=True, slots=True)
class RuleBase:
    """Rules by id, and warnings by code."""

    rules: tuple[Rule, ...]
    warnings: tuple[WarningRule, ...]


def load_rule_base(definitions: tuple[FactDefinition, ...], additional: Path | None = None) -> RuleBase:
    """The rules and warnings that ship with the program, and those of the directory ``additional``.

    ``definitions``: the facts that they may compare. Raises RuleBaseError, which lists all errors.
    """
    return _load_own(definitions) if additional is None else _read(definitions, RULES_DIR, additional)


@cache
def _load_own(definitions: tuple[FactDefinition, ...]) -> RuleBase:
    """What ships with the program never changes while it runs."""
    return _read(definitions, RULES_DIR)


def _read(definitions: tuple[FactDefinition, ...], *directories: Path) -> RuleBase:
    rules = load_rules(*directories, definitions=definitions)
    return RuleBase(rules, load_warnings(*directories, definitions=definitions))
