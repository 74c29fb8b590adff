"""Cases of a rule: facts in, expected finding out; the form rules are tested in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from three_walls.model.config import ConfigData
from three_walls.model.fact import Fact, FactSheet
from three_walls.model.finding import Finding, Outcome
from three_walls.model.glossary import GLOSSARY_BY_NAME, is_known_fact
from three_walls.rules.rule_parts import unit_of
from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.yaml_nodes import Node, plain

_EXPECTATIONS = ("edits", "edits_absent", "missing", "blocked_by", "confirm_first", "gain_ns", "cost_fraction")


@dataclass(frozen=True, slots=True)
class Case:
    """One sentence about a rule: the workload with some facts changed or taken away, and what must come out."""

    name: str
    given: Mapping[str, ConfigData]
    without: tuple[str, ...]
    expect: Mapping[str, object]
    environment_is_known: bool = False
    """A variable that is not among the facts was not set."""


@dataclass(frozen=True, slots=True)
class RuleCases:
    """All cases of one rule and the workload they start from."""

    rule: str
    workload: Mapping[str, ConfigData]
    cases: tuple[Case, ...]

    def facts_of(self, case: Case) -> FactSheet:
        """The facts ``case`` is judged on."""
        values = {**self.workload, **case.given}
        kept = {name: value for name, value in values.items() if name not in case.without}
        return sheet_of(kept, case.environment_is_known)


def load_cases(path: Path) -> RuleCases:
    """Cases of one file; RuleBaseError lists all its problems."""
    problems = Problems()
    root = load_strict(path, problems)
    found = problems.fields(root, ("rule", "workload", "cases"))
    cases = RuleCases(
        rule=problems.text(found.get("rule")),
        workload=_read_facts(found.get("workload"), problems),
        cases=_read_cases(found.get("cases"), problems),
    )
    if "rule" in found and path.name != f"{cases.rule}.cases.yaml":
        problems.add(found["rule"], f"rule {cases.rule} is not the file's name {path.name.removesuffix('.cases.yaml')}")
    problems.raise_if_any()
    return cases


def sheet_of(values: Mapping[str, ConfigData], environment_is_known: bool = False) -> FactSheet:
    """A fact sheet that holds exactly ``values``, with their definitions."""
    facts = (Fact(name, value, unit_of(name), definition=GLOSSARY_BY_NAME.get(name)) for name, value in values.items())
    return FactSheet.of(facts, environment_is_known)


def mismatches(case: Case, finding: Finding) -> list[str]:
    """What of ``case.expect`` the finding does not meet, one sentence each; what is not expected is free."""
    found: dict[str, object] = {
        "outcome": finding.outcome.value,
        "missing": list(finding.missing),
        "blocked_by": [note.name for note in finding.blocked_by],
        "confirm_first": [note.name for note in finding.confirm_first],
        "edits": {edit.key: _plain(edit.to) for edit in finding.edits},
        "gain_ns": {
            "low": finding.gain_ns.low,
            "likely": finding.gain_ns.likely,
            "high": finding.gain_ns.high,
        },
        "cost_fraction": finding.gain_ns.cost_fraction,
    }
    wrong = [
        f"{key}: expected {wanted}, found {found[key]}"
        for key, wanted in case.expect.items()
        if key != "edits_absent" and not _is_part_of(wanted, found[key])
    ]
    absent = case.expect.get("edits_absent", [])
    assert isinstance(absent, list)  # checked when the case was read
    return wrong + [f"edit {key} was not expected" for key in absent if any(e.key == key for e in finding.edits)]


def _read_cases(node: Node | None, problems: Problems) -> tuple[Case, ...]:
    return tuple(_read_case(name, body, problems) for name, body in problems.entries(node).items())


def _read_case(name: str, node: Node, problems: Problems) -> Case:
    found = problems.fields(node, ("expect",), ("given", "without", "environment_is_known"))
    without = tuple(problems.text(item) for item in problems.items(found.get("without")))
    return Case(
        name=name,
        given=_read_facts(found.get("given"), problems),
        without=without,
        expect=_read_expect(found.get("expect"), problems),
        environment_is_known=problems.flag(found.get("environment_is_known")),
    )


def _read_expect(node: Node | None, problems: Problems) -> Mapping[str, object]:
    found = problems.fields(node, ("outcome",), _EXPECTATIONS)
    problems.choice(found.get("outcome"), tuple(Outcome))
    for key in ("edits_absent", "missing", "blocked_by", "confirm_first"):
        problems.items(found.get(key))
    for key in ("edits", "gain_ns"):
        problems.entries(found.get(key))
    if "cost_fraction" in found:
        problems.number(found["cost_fraction"], 0.0, 1.0)
    return {key: plain(value) for key, value in found.items()}


def _read_facts(node: Node | None, problems: Problems) -> Mapping[str, ConfigData]:
    found = problems.entries(node)
    for name in found:
        if node is not None and not is_known_fact(name):
            problems.add(node.key_places[name], f"unknown fact {name}{suggest(name, GLOSSARY_BY_NAME)}")
    return {name: problems.value(value) for name, value in found.items()}


def _is_part_of(wanted: object, found: object) -> bool:
    """Mappings are compared as a subset, lists as sets, the rest as equal."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and _is_part_of(value, found[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return sorted(map(str, wanted)) == sorted(map(str, found))
    return type(wanted) is type(found) and wanted == found


def _plain(value: ConfigData) -> object:
    return list(value) if isinstance(value, tuple) else value
