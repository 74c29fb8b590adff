"""The parts of a rule file read one by one: conditions, requirements, edits, gain, evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from three_walls.advice import strict_yaml
from three_walls.advice.operands import complaint_about
from three_walls.advice.sources import Source, check_pointer
from three_walls.advice.strict_yaml import Problems
from three_walls.vocabulary.config import ConfigData
from three_walls.vocabulary.facts import FactDefinition
from three_walls.vocabulary.glossary import GLOSSARY_BY_NAME, is_known_fact
from three_walls.vocabulary.rules import OPERATORS, Condition, Edit, Evidence, GainModel, GainTerm, Requirement

BASES = ("measured", "modelled", "bound")


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads parts of one rule file, noting problems as it goes."""

    problems: Problems
    sources: Mapping[str, Source]

    def conditions(self, node: yaml.Node | None) -> tuple[Condition, ...]:
        """``fact: {operator: operand}`` entries; all must hold."""
        if node is None:
            return ()
        found: list[Condition] = []
        for fact_node, fact, tests in strict_yaml.entries(node, self.problems):
            if not is_known_fact(fact):
                self.problems.add(fact_node, f"unknown fact {fact}{strict_yaml.suggest(fact, GLOSSARY_BY_NAME)}")
                continue
            found += [self._condition(fact, key, word, operand) for key, word, operand in self._tests(tests)]
        return tuple(found)

    def requirements(self, node: yaml.Node | None) -> tuple[Requirement, ...]:
        """Named requirements, in order."""
        if node is None:
            return ()
        named = strict_yaml.entries(node, self.problems)
        return tuple(self._requirement(name, body) for _, name, body in named)

    def edits(self, node: yaml.Node | None) -> tuple[Edit, ...]:
        """Edits, in order; a rule without one is a problem."""
        found = tuple(self._edit(item) for item in strict_yaml.items(node, self.problems))
        if node is not None and not found:
            self.problems.add(node, "expected at least one edit")
        return found

    def side_effects(self, node: yaml.Node | None) -> tuple[str, ...]:
        """Sentences, each ending in its source."""
        return tuple(self._side_effect(item) for item in strict_yaml.items(node, self.problems))

    def evidence(self, node: yaml.Node | None) -> tuple[Evidence, ...]:
        """Claims for and against."""
        return tuple(self._claim(item) for item in strict_yaml.items(node, self.problems))

    def gain(self, node: yaml.Node | None) -> GainModel:
        """The gain model."""
        if node is None:
            return GainModel((), "", "")
        keys = ("terms", "basis", "explanation")
        found = strict_yaml.fields(node, self.problems, keys, ("shrinks_all_pools", "hidden_under"))
        terms = tuple(self._gain_term(item) for item in strict_yaml.items(found.get("terms"), self.problems))
        if "terms" in found and not terms:
            self.problems.add(found["terms"], "expected at least one term")
        return GainModel(
            terms=terms,
            basis=strict_yaml.choice(found.get("basis"), self.problems, BASES),
            explanation=strict_yaml.text(found.get("explanation"), self.problems),
            shrinks_all_pools=strict_yaml.flag(found.get("shrinks_all_pools"), self.problems),
            hidden_under=self._fact_of_unit(found.get("hidden_under"), "ns"),
        )

    def _tests(self, node: yaml.Node) -> list[tuple[yaml.Node, str, yaml.Node]]:
        tests = strict_yaml.entries(node, self.problems)
        if isinstance(node, yaml.MappingNode) and not node.value:
            self.problems.add(node, "expected an operator and its operand")
        return tests

    def _condition(self, fact: str, operator_node: yaml.Node, operator: str, operand_node: yaml.Node) -> Condition:
        operand = strict_yaml.value(operand_node, self.problems)
        if operator not in OPERATORS:
            self.problems.add(operator_node, f"unknown operator {operator}{strict_yaml.suggest(operator, OPERATORS)}")
        elif complaint := complaint_about(unit_of(fact), operator, operand):
            self.problems.add(operand_node, f"{fact}: {complaint}, found {strict_yaml.describe(operand_node)}")
        return Condition(fact, operator, operand)

    def _requirement(self, name: str, node: yaml.Node) -> Requirement:
        found = strict_yaml.fields(node, self.problems, ("because", "source"), ("check", "any_of", "confirm"))
        if "check" in found and "any_of" in found:
            self.problems.add(node, "a requirement has check or any_of, not both")
        if found and not {"check", "any_of", "confirm"} & set(found):
            self.problems.add(node, "a requirement needs check, any_of or confirm")
        checks = self._alternatives(found["any_of"]) if "any_of" in found else self.conditions(found.get("check"))
        return Requirement(
            name=name,
            checks=checks,
            any_of="any_of" in found,
            confirm=strict_yaml.text(found.get("confirm"), self.problems),
            because=strict_yaml.text(found.get("because"), self.problems),
            source=check_pointer(found.get("source"), self.problems, self.sources),
        )

    def _alternatives(self, node: yaml.Node) -> tuple[Condition, ...]:
        found: list[Condition] = []
        for item in strict_yaml.items(node, self.problems):
            conditions = self.conditions(item)
            if len(conditions) > 1:
                self.problems.add(item, "an alternative of any_of is one comparison")
            found += conditions
        return tuple(found)

    def _edit(self, node: yaml.Node) -> Edit:
        optional = ("set", "env", "from", "only_if", "changes_numerics", "because", "source")
        found = strict_yaml.fields(node, self.problems, ("to",), optional)
        if found and ("set" in found) == ("env" in found):
            self.problems.add(node, "an edit names either set (a config key) or env (a variable)")
        kind = "env" if "env" in found else "config"
        to, to_fact = self._target(found.get("to"), kind)
        return Edit(
            key=strict_yaml.text(found.get("env", found.get("set")), self.problems),
            to=to,
            kind=kind,
            from_value=strict_yaml.value(found.get("from"), self.problems),
            only_if=self.conditions(found.get("only_if")),
            changes_numerics=strict_yaml.flag(found.get("changes_numerics"), self.problems),
            because=strict_yaml.text(found.get("because"), self.problems),
            source=check_pointer(found.get("source"), self.problems, self.sources),
            to_fact=to_fact,
        )

    def _target(self, node: yaml.Node | None, kind: str) -> tuple[ConfigData, str]:
        if isinstance(node, yaml.MappingNode):
            found = strict_yaml.fields(node, self.problems, ("fact",))
            return None, self._known_fact(found.get("fact"))
        to = strict_yaml.value(node, self.problems)
        if node is not None and kind == "env" and not isinstance(to, str | None):
            self.problems.add(node, f"a variable is set to text, found {strict_yaml.describe(node)} (quote it)")
        return to, ""

    def _side_effect(self, node: yaml.Node) -> str:
        found = strict_yaml.fields(node, self.problems, ("effect", "source"))
        effect = strict_yaml.text(found.get("effect"), self.problems)
        return f"{effect} ({check_pointer(found.get('source'), self.problems, self.sources)})"

    def _claim(self, node: yaml.Node) -> Evidence:
        found = strict_yaml.fields(node, self.problems, ("speaks", "claim", "source"))
        return Evidence(
            speaks=strict_yaml.choice(found.get("speaks"), self.problems, ("for", "against")),
            claim=strict_yaml.text(found.get("claim"), self.problems),
            source=check_pointer(found.get("source"), self.problems, self.sources),
        )

    def _gain_term(self, node: yaml.Node) -> GainTerm:
        found = strict_yaml.fields(node, self.problems, ("pool", "low", "high"), ("likely",))
        low = strict_yaml.number(found.get("low"), self.problems, 0.0, 1.0)
        high, high_fact = self._high_end(found.get("high"))
        likely = (low + high) / 2
        if "likely" in found:
            likely = strict_yaml.number(found["likely"], self.problems, 0.0, 1.0)
            if high_fact:
                self.problems.add(found["likely"], "likely is the midpoint where high comes from a fact: leave it out")
        if found and not low <= likely <= high:
            self.problems.add(node, f"expected low <= likely <= high, found {low:g}, {likely:g}, {high:g}")
        return GainTerm(self._fact_of_unit(found.get("pool"), "ns"), low, likely, high, high_fact)

    def _high_end(self, node: yaml.Node | None) -> tuple[float, str]:
        if isinstance(node, yaml.MappingNode):
            found = strict_yaml.fields(node, self.problems, ("one_minus_fact",))
            return 1.0, self._fact_of_unit(found.get("one_minus_fact"), "fraction")
        return strict_yaml.number(node, self.problems, 0.0, 1.0), ""

    def _known_fact(self, node: yaml.Node | None) -> str:
        name = strict_yaml.text(node, self.problems)
        if node is not None and name and not is_known_fact(name):
            self.problems.add(node, f"unknown fact {name}{strict_yaml.suggest(name, GLOSSARY_BY_NAME)}")
        return name

    def _fact_of_unit(self, node: yaml.Node | None, unit: str) -> str:
        name = self._known_fact(node)
        if node is not None and is_known_fact(name) and unit_of(name) != unit:
            self.problems.add(node, f"expected a fact in {unit}, found {name} ({unit_of(name)})")
        return name


def unit_of(fact: str) -> str:
    """Unit of a known fact: the glossary's, ``config`` for settings, ``env`` for variables."""
    if fact.startswith("env."):
        return "env"
    definition: FactDefinition | None = GLOSSARY_BY_NAME.get(fact)
    return "config" if definition is None else definition.unit
