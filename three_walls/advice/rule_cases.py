"""Cases of a rule: facts in, expected finding out; the form rules are tested in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from three_walls.advice import strict_yaml
from three_walls.advice.rule_parts import unit_of
from three_walls.advice.strict_yaml import Problems
from three_walls.vocabulary.config import ConfigData
from three_walls.vocabulary.facts import Fact, FactSheet
from three_walls.vocabulary.findings import Finding, Outcome
from three_walls.vocabulary.glossary import GLOSSARY_BY_NAME, is_known_fact

_EXPECTATIONS = ("edits", "edits_absent", "missing", "blocked_by", "confirm_first", "gain_ns")


@dataclass(frozen=True, slots=True)
class Case:
    """One sentence about a rule: the workload with some facts changed or taken away, and what must come out."""

    name: str
    given: Mapping[str, ConfigData]
    without: tuple[str, ...]
    expect: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RuleCases:
    """All cases of one rule and the workload they start from."""

    rule: str
    workload: Mapping[str, ConfigData]
    cases: tuple[Case, ...]

    def facts_of(self, case: Case) -> FactSheet:
        """The facts ``case`` is judged on."""
        values = {**self.workload, **case.given}
        return sheet_of({name: value for name, value in values.items() if name not in case.without})


def load_cases(path: Path) -> RuleCases:
    """Cases of one file; RuleBaseError lists all its problems."""
    problems = Problems()
    root = strict_yaml.compose(path, problems)
    problems.raise_if_any()
    assert root is not None  # compose notes a problem whenever it returns None
    found = strict_yaml.fields(root, problems, ("rule", "workload", "cases"))
    cases = RuleCases(
        rule=strict_yaml.text(found.get("rule"), problems),
        workload=_read_facts(found.get("workload"), problems),
        cases=_read_cases(found.get("cases"), problems),
    )
    if "rule" in found and path.name != f"{cases.rule}.cases.yaml":
        problems.add(found["rule"], f"rule {cases.rule} is not the file's name {path.name.removesuffix('.cases.yaml')}")
    problems.raise_if_any()
    return cases


def sheet_of(values: Mapping[str, ConfigData]) -> FactSheet:
    """A fact sheet that holds exactly ``values``, in the glossary's units."""
    return FactSheet.of(Fact(name, value, unit_of(name)) for name, value in values.items())


def mismatches(case: Case, finding: Finding) -> list[str]:
    """What of ``case.expect`` the finding does not meet, one sentence each; what is not expected is free."""
    found: dict[str, object] = {
        "outcome": finding.outcome.value,
        "missing": list(finding.missing),
        "blocked_by": [note.name for note in finding.blocked_by],
        "confirm_first": [note.name for note in finding.confirm_first],
        "edits": {edit.key: _plain(edit.to) for edit in finding.edits},
        "gain_ns": {
            "low": finding.gain.low_ns,
            "likely": finding.gain.likely_ns,
            "high": finding.gain.high_ns,
        },
    }
    wrong = [
        f"{key}: expected {wanted}, found {found[key]}"
        for key, wanted in case.expect.items()
        if key != "edits_absent" and not _is_part_of(wanted, found[key])
    ]
    absent = case.expect.get("edits_absent", [])
    assert isinstance(absent, list)  # checked when the case was read
    return wrong + [f"edit {key} was not expected" for key in absent if any(e.key == key for e in finding.edits)]


def _read_cases(node: yaml.Node | None, problems: Problems) -> tuple[Case, ...]:
    if node is None:
        return ()
    return tuple(_read_case(name, body, problems) for _, name, body in strict_yaml.entries(node, problems))


def _read_case(name: str, node: yaml.Node, problems: Problems) -> Case:
    found = strict_yaml.fields(node, problems, ("expect",), ("given", "without"))
    without = tuple(strict_yaml.text(item, problems) for item in strict_yaml.items(found.get("without"), problems))
    return Case(name, _read_facts(found.get("given"), problems), without, _read_expect(found.get("expect"), problems))


def _read_expect(node: yaml.Node | None, problems: Problems) -> Mapping[str, object]:
    if node is None:
        return {}
    found = strict_yaml.fields(node, problems, ("outcome",), _EXPECTATIONS)
    strict_yaml.choice(found.get("outcome"), problems, tuple(Outcome))
    for key in ("edits_absent", "missing", "blocked_by", "confirm_first"):
        strict_yaml.items(found.get(key), problems)
    for key in ("edits", "gain_ns"):
        if key in found:
            strict_yaml.entries(found[key], problems)
    return {key: strict_yaml.construct(value) for key, value in found.items()}


def _read_facts(node: yaml.Node | None, problems: Problems) -> Mapping[str, ConfigData]:
    if node is None:
        return {}
    values: dict[str, ConfigData] = {}
    for key_node, name, value_node in strict_yaml.entries(node, problems):
        if not is_known_fact(name):
            problems.add(key_node, f"unknown fact {name}{strict_yaml.suggest(name, GLOSSARY_BY_NAME)}")
        values[name] = strict_yaml.value(value_node, problems)
    return values


def _is_part_of(wanted: object, found: object) -> bool:
    """Mappings are compared as a subset, lists as sets, the rest as equal."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and _is_part_of(value, found[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return sorted(map(str, wanted)) == sorted(map(str, found))
    return type(wanted) is type(found) and wanted == found


def _plain(value: ConfigData) -> object:
    return list(value) if isinstance(value, tuple) else value
