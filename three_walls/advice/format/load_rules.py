"""The rule base: YAML files in, rules out, every error of every file in one exception."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.advice.format.conditions import KnownFacts
from three_walls.advice.format.effect import CHANGE_NUMBERS, Effect
from three_walls.advice.format.rule import Rule, folder_of
from three_walls.advice.format.rule_sources import Source, read_sources
from three_walls.advice.judge_warnings import WarningRule, load_warnings
from three_walls.lib.errors import UsageError
from three_walls.lib.fact import FactDefinition
from three_walls.lib.load_documents import Problem, raise_problems, read_table
from three_walls.lib.resources import EFFECTS_FOLDER, RULES_DIR, WARNINGS_FOLDER
from three_walls.tables.buckets import Wall

CASES_SUFFIX = ".cases.yaml"
SOURCES_FILE = "sources.yaml"


@dataclass(frozen=True, slots=True)
class RuleBase:
    """Rules and effects of settings by id, and warnings by code."""

    rules: tuple[Rule, ...]
    effects: tuple[Effect, ...]
    warnings: tuple[WarningRule, ...]


def load_rule_base(definitions: tuple[FactDefinition, ...], additional: Path | None = None) -> RuleBase:
    """The rules and warnings that ship with the program, and those of the directory ``additional``.

    ``definitions``: the facts that they may compare. Raises RuleBaseError, which lists all errors.
    """
    return _load_own(definitions) if additional is None else _load(definitions, RULES_DIR, additional)


@cache
def _load_own(definitions: tuple[FactDefinition, ...]) -> RuleBase:
    """What ships with the program never changes while it runs."""
    return _load(definitions, RULES_DIR)


def _load(definitions: tuple[FactDefinition, ...], *directories: Path) -> RuleBase:
    rules = load_rules(*directories, definitions=definitions)
    effects = load_effects(*directories, definitions=definitions)
    return RuleBase(rules, effects, load_warnings(*directories, definitions=definitions))


def load_rules(directory: Path, *more: Path, definitions: Iterable[FactDefinition]) -> tuple[Rule, ...]:
    """The rules of ``directory`` and of ``more`` directories, by id; RuleBaseError lists all problems of all files.

    ``definitions``: the facts that rules may compare. Rules may cite the sources of their own directory's
    ``sources.yaml`` and of the directories before it.
    """
    problems: list[Problem] = []
    sources: dict[str, Source] = {}
    rules: dict[str, Rule] = {}
    facts = KnownFacts.of(definitions)
    for place in (directory, *more):
        if not place.is_dir():
            problems.append(Problem((str(place), 1, 1), "expected a directory of rules"))
            continue
        if place == directory or (place / SOURCES_FILE).exists():
            sources |= read_sources(place / SOURCES_FILE, problems)
        for path in rule_files(place):
            rule = read_table(path, Rule, problems, {"facts": facts, "sources": sources, "path": path})
            if rule is None:
                continue
            if rule.id in rules:
                message = f"id {rule.id} is already that of {rules[rule.id].path}; rename this rule"
                problems.append(Problem((str(path), 1, 1), message))
            rules.setdefault(rule.id, rule)
    raise_problems(problems)
    return tuple(rules[name] for name in sorted(rules))


def load_effects(directory: Path, *more: Path, definitions: Iterable[FactDefinition]) -> tuple[Effect, ...]:
    """The effects of settings in ``directory`` and ``more`` directories, in the order in which they are applied.

    A later directory's effect takes the place of one with its id. RuleBaseError lists all problems of all files.
    """
    problems: list[Problem] = []
    sources: dict[str, Source] = {}
    effects: dict[str, Effect] = {}
    facts = KnownFacts.of((*definitions, *CHANGE_NUMBERS))
    for place in (directory, *more):
        if place == directory or (place / SOURCES_FILE).exists():
            sources |= read_sources(place / SOURCES_FILE, problems)
        for path in sorted((place / EFFECTS_FOLDER).glob("*.yaml")):
            effect = read_table(path, Effect, problems, {"facts": facts, "sources": sources, "path": path})
            if effect is not None:
                effects[effect.id] = effect
    raise_problems(problems)
    return tuple(sorted(effects.values(), key=lambda effect: effect.order))


def rule_files(directory: Path) -> tuple[Path, ...]:
    """The rule files in the folders of ``directory``, one folder per wall; not cases, warnings or effects."""
    paths = (path for path in directory.glob("*/*.yaml") if not path.name.endswith(CASES_SUFFIX))
    return tuple(sorted(path for path in paths if path.parent.name not in (WARNINGS_FOLDER, EFFECTS_FOLDER)))


def check_rules_directory(directory: Path) -> None:
    """Raises UsageError for a directory of a user's that has no rules, no warnings and no sources."""
    warnings = (directory / WARNINGS_FOLDER).glob("*.yaml")
    effects = (directory / EFFECTS_FOLDER).glob("*.yaml")
    if rule_files(directory) or any(warnings) or any(effects) or (directory / SOURCES_FILE).exists():
        return
    folders = ", ".join((*map(folder_of, Wall), WARNINGS_FOLDER, EFFECTS_FOLDER))
    raise UsageError(f"--rules {directory}: expected .yaml files in its folders ({folders}), found none")


def cases_file(rule_path: Path) -> Path:
    """The file of cases next to the rule file ``rule_path``."""
    return rule_path.with_name(rule_path.name.removesuffix(".yaml") + CASES_SUFFIX)


def rule_file(cases_path: Path) -> Path:
    """The rule file next to the file of cases ``cases_path``."""
    return cases_path.with_name(cases_path.name.removesuffix(CASES_SUFFIX) + ".yaml")
