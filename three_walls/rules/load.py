"""The rule base: strict YAML files in, rules out, every error of every file in one exception."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from three_walls.model.buckets import SubWall, Wall
from three_walls.model.rule import PHASES, RULE_CLASSES, Rule
from three_walls.rules.cases import load_cases as load_cases
from three_walls.rules.rule_parts import PartReader
from three_walls.rules.sources import Source, load_sources
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node, Place

CASES_SUFFIX = ".cases.yaml"
SOURCES_FILE = "sources.yaml"

_REQUIRED = ("id", "wall", "title", "class", "docs", "applies_to", "when", "gain", "evidence")
_OPTIONAL = ("sub_wall", "phase", "requires", "lever", "edits", "advice", "side_effects")
TABLES_FOLDER = "bridge"
_DOCS = ("what_it_looks_for", "why_it_matters", "how_to_verify")


def load_rules(directory: Path, *more: Path) -> tuple[Rule, ...]:
    """Every rule below ``directory`` and ``more`` ones, by id; RuleBaseError lists all problems of all files.

    A directory's rules may point to the sources of its own ``sources.yaml`` and to those of the directories before.
    """
    problems = Problems()
    sources: dict[str, Source] = {}
    rules: list[Rule] = []
    for place in (directory, *more):
        if place == directory or (place / SOURCES_FILE).exists():
            sources |= load_sources(place / SOURCES_FILE)
        found = [rule for path in rule_files(place) if (rule := _read_rule(path, sources, problems))]
        _note_shared_ids(rules, found, place, problems)
        rules += found
    problems.raise_if_any()
    return tuple(sorted(rules, key=lambda rule: rule.id))


def rule_files(directory: Path) -> tuple[Path, ...]:
    """Rule files: one folder per wall; files at the top and in ``bridge`` are tables, ``*.cases.yaml`` are cases."""
    found = (path for path in directory.glob("*/*.yaml") if not path.name.endswith(CASES_SUFFIX))
    return tuple(sorted(path for path in found if path.parent.name != TABLES_FOLDER))


def cases_file(rule_file: Path) -> Path:
    """The file of cases beside ``rule_file``."""
    return rule_file.with_name(rule_file.name.removesuffix(".yaml") + CASES_SUFFIX)


def _read_rule(path: Path, sources: Mapping[str, Source], problems: Problems) -> Rule | None:
    root = load_strict(path, problems)
    if root is None:
        return None
    found = problems.fields(root, _REQUIRED, _OPTIONAL)
    parts = PartReader(problems, sources)
    docs = _read_docs(found.get("docs"), problems)
    wall = problems.choice(found.get("wall"), tuple(Wall))
    sub_wall = problems.choice(found.get("sub_wall"), tuple(SubWall))
    identifier = problems.text(found.get("id"))
    _note_misplacement(found, path, identifier, wall, problems)
    _note_contradictions(root, found, problems)
    return Rule(
        id=identifier,
        wall=Wall(wall) if wall in tuple(Wall) else Wall.MEMORY,
        sub_wall=SubWall(sub_wall) if sub_wall in tuple(SubWall) else None,
        title=problems.text(found.get("title")),
        rule_class=problems.choice(found.get("class"), RULE_CLASSES),
        what_it_looks_for=docs.get("what_it_looks_for", ""),
        why_it_matters=docs.get("why_it_matters", ""),
        how_to_verify=docs.get("how_to_verify", ""),
        applies_to=parts.conditions(found.get("applies_to")),
        when=parts.conditions(found.get("when")),
        requires=parts.requirements(found.get("requires")),
        lever=problems.text(found.get("lever")),
        edits=parts.edits(found["edits"]) if "edits" in found else (),
        side_effects=parts.side_effects(found.get("side_effects")),
        gain=parts.gain(found.get("gain")),
        evidence=parts.evidence(found.get("evidence")),
        path=f"{path.parent.name}/{path.name}",
        phase=problems.choice(found["phase"], PHASES) if "phase" in found else PHASES[-1],
        advice=" ".join(problems.text(found.get("advice")).split()),
    )


def _read_docs(node: Node | None, problems: Problems) -> dict[str, str]:
    found = problems.fields(node, _DOCS)
    return {key: " ".join(problems.text(value).split()) for key, value in found.items()}


def _note_misplacement(found: Mapping[str, Node], path: Path, identifier: str, wall: str, problems: Problems) -> None:
    if "id" in found and identifier and identifier != path.stem:
        problems.add(found["id"], f"id {identifier} is not the file's name {path.stem}")
    folder = wall.replace("_", "-")
    if wall in tuple(Wall) and path.parent.name != folder:
        problems.add(found["wall"], f"a rule of wall {wall} lives in {folder}/, this one is in {path.parent.name}/")
    if ("sub_wall" in found) != (wall == Wall.COMPUTE_HOST) and wall in tuple(Wall):
        problems.add(found["wall"], "sub_wall belongs to rules of wall compute_host, and each of those has one")


def _note_contradictions(root: Node, found: Mapping[str, Node], problems: Problems) -> None:
    """A rule edits the configuration, under a lever, or it says what else to do."""
    if ("edits" in found) == ("advice" in found):
        problems.add(root, "a rule has edits, or an advice where no edit helps: one of the two")
    if ("edits" in found) != ("lever" in found):
        problems.add(root, "edits and lever go together")


def _note_shared_ids(before: list[Rule], rules: list[Rule], directory: Path, problems: Problems) -> None:
    first = {rule.id: rule.path for rule in before}
    for rule in rules:
        if rule.id and rule.id in first:
            problems.add(Place(str(directory / rule.path), 1, 1), f"id {rule.id} is already that of {first[rule.id]}")
        first.setdefault(rule.id, rule.path)
