"""The parts of a rule file read one by one: conditions, requirements, edits, gain, evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.model.config import ConfigData
from three_walls.model.fact import FactDefinition
from three_walls.model.glossary import GLOSSARY_BY_NAME, is_known_fact
from three_walls.model.rule import (
    BASES,
    FREES_MEMORY,
    NO_BASIS,
    OPERATIONS,
    OPERATORS,
    UPPER_BOUND,
    Condition,
    Edit,
    Evidence,
    GainModel,
    GainTerm,
    Requirement,
)
from three_walls.rules.conditions import check_operand
from three_walls.rules.sources import Source, check_pointer
from three_walls.tables.strict_yaml import Problems, suggest
from three_walls.tables.yaml_nodes import Node, describe


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads parts of one rule file, noting problems as it goes."""

    problems: Problems
    sources: Mapping[str, Source]

    def conditions(self, node: Node | None) -> tuple[Condition, ...]:
        """``fact: {operator: operand}`` entries; all must hold."""
        found: list[Condition] = []
        for fact, tests in self.problems.entries(node).items():
            if is_known_fact(fact):
                found += self._tests(fact, tests)
            elif node is not None:
                self.problems.add(node.key_places[fact], f"unknown fact {fact}{suggest(fact, GLOSSARY_BY_NAME)}")
        return tuple(found)

    def requirements(self, node: Node | None) -> tuple[Requirement, ...]:
        """Named requirements, in order."""
        return tuple(self._requirement(name, body) for name, body in self.problems.entries(node).items())

    def edits(self, node: Node | None) -> tuple[Edit, ...]:
        """Edits, in order; a rule without one is a problem."""
        found = tuple(self._edit(item) for item in self.problems.items(node))
        if node is not None and not found:
            self.problems.add(node, "expected at least one edit")
        return found

    def side_effects(self, node: Node | None) -> tuple[str, ...]:
        """Sentences, each ending in its source."""
        return tuple(self._side_effect(item) for item in self.problems.items(node))

    def evidence(self, node: Node | None) -> tuple[Evidence, ...]:
        """Claims for and against."""
        return tuple(self._claim(item) for item in self.problems.items(node))

    def gain(self, node: Node | None) -> GainModel:
        """The gain model."""
        if node is None:
            return GainModel((), "", "")
        optional = ("terms", "shrinks_all_pools", "hidden_under", "at_most", "cost_fraction", "cost_is_estimated")
        found = self.problems.fields(node, ("basis", "explanation"), optional)
        basis = self.problems.choice(found.get("basis"), BASES)
        terms = tuple(self._gain_term(item, basis) for item in self.problems.items(found.get("terms")))
        cost = found.get("cost_fraction")
        self._note_basis_without_its_figures(node, basis, bool(terms), cost is not None)
        return GainModel(
            cost_fraction=None if cost is None else self.problems.number(cost, 0.0, 1.0),
            cost_is_estimated=self.problems.flag(found.get("cost_is_estimated")),
            terms=terms,
            basis=basis,
            explanation=self.problems.text(found.get("explanation")),
            shrinks_all_pools=self.problems.flag(found.get("shrinks_all_pools")),
            hidden_under=self._fact_of_unit(found.get("hidden_under"), "ns"),
            at_most=self._fact_of_unit(found.get("at_most"), "ns"),
        )

    def _note_basis_without_its_figures(self, node: Node, basis: str, has_terms: bool, has_cost: bool) -> None:
        if basis not in BASES:
            return
        if has_terms == (basis in (FREES_MEMORY, NO_BASIS)):
            self.problems.add(node, "a gain has terms, or the basis room or none and an explanation")
        if has_cost != (basis == FREES_MEMORY):
            self.problems.add(node, "what makes room has a cost_fraction, and nothing else has")

    def _tests(self, fact: str, node: Node) -> list[Condition]:
        tests = self.problems.entries(node)
        if isinstance(node.value, Mapping) and not tests:
            self.problems.add(node, "expected an operator and its operand")
        found = []
        for operator, operand_node in tests.items():
            if operator in OPERATORS:
                found.append(Condition(fact, operator, self._operand(fact, operator, operand_node)))
            else:
                place = node.key_places[operator]
                self.problems.add(place, f"unknown operator {operator}{suggest(operator, OPERATORS)}")
        return found

    def _operand(self, fact: str, operator: str, node: Node) -> ConfigData:
        operand = self.problems.value(node)
        complaint = check_operand(unit_of(fact), operator, operand)
        if complaint and not node.is_refused:
            self.problems.add(node, f"{fact}: {complaint}, found {describe(node)}")
        return operand

    def _requirement(self, name: str, node: Node) -> Requirement:
        found = self.problems.fields(node, ("reason", "source"), ("check", "any_of", "confirm", "fix"))
        if "check" in found and "any_of" in found:
            self.problems.add(node, "a requirement has check or any_of, not both")
        if found and not {"check", "any_of", "confirm"} & set(found):
            self.problems.add(node, "a requirement needs check, any_of or confirm")
        checks = self.alternatives(found["any_of"]) if "any_of" in found else self.conditions(found.get("check"))
        return Requirement(
            name=name,
            checks=checks,
            any_of="any_of" in found,
            confirm=self.problems.text(found.get("confirm")),
            reason=self.problems.text(found.get("reason")),
            source=self._pointer(found.get("source")),
            fix=self.edits(found["fix"]) if "fix" in found else (),
        )

    def alternatives(self, node: Node) -> tuple[Condition, ...]:
        """A list of single comparisons, of which one must hold."""
        found: list[Condition] = []
        for item in self.problems.items(node):
            conditions = self.conditions(item)
            if len(conditions) > 1:
                self.problems.add(item, "an alternative of any_of is one comparison")
            found += conditions
        return tuple(found)

    def _edit(self, node: Node) -> Edit:
        optional = ("to", "set", "env", "add", "remove", "from", "only_if", "changes_numerics", "reason", "source")
        found = self.problems.fields(node, (), optional)
        if found and ("set" in found) == ("env" in found):
            self.problems.add(node, "an edit names either set (a config key) or env (a variable)")
        kind = "env" if "env" in found else "config"
        operation, to, to_fact = self._change(node, found, kind)
        return Edit(
            key=self.problems.text(found.get("env", found.get("set"))),
            to=to,
            operation=operation,
            kind=kind,
            from_value=self.problems.value(found.get("from")),
            only_if=self.conditions(found.get("only_if")),
            changes_numerics=self.problems.flag(found.get("changes_numerics")),
            reason=self.problems.text(found.get("reason")),
            source=self._pointer(found.get("source")),
            to_fact=to_fact,
        )

    def _change(self, node: Node, found: Mapping[str, Node], kind: str) -> tuple[str, ConfigData, str]:
        """Operation, target and the fact that the target is taken from."""
        changes = [name for name in ("to", "add", "remove") if name in found]
        if found and len(changes) != 1:
            self.problems.add(node, "an edit says one of to (a value), add or remove (elements of a list)")
        if not changes or changes[0] == "to":
            return "set", *self._target(found.get("to"), kind)
        elements = self.problems.value(found[changes[0]])
        if kind == "env" or not isinstance(elements, tuple) or not elements:
            self.problems.add(found[changes[0]], "add and remove take a list of elements, of a config key")
        assert changes[0] in OPERATIONS
        return changes[0], elements, ""

    def _target(self, node: Node | None, kind: str) -> tuple[ConfigData, str]:
        if node is not None and isinstance(node.value, Mapping):
            found = self.problems.fields(node, ("fact",))
            return None, self._known_fact(found.get("fact"))
        to = self.problems.value(node)
        if node is not None and kind == "env" and not isinstance(to, str | None):
            self.problems.add(node, f"a variable is set to text, found {describe(node)} (quote it)")
        return to, ""

    def _side_effect(self, node: Node) -> str:
        found = self.problems.fields(node, ("effect", "source"))
        effect = self.problems.text(found.get("effect"))
        return f"{effect} ({self._pointer(found.get('source'))})"

    def _pointer(self, node: Node | None) -> str:
        pointer = self.problems.text(node)
        if node is not None and pointer and (wrong := check_pointer(pointer, self.sources)):
            self.problems.add(node, wrong)
        return pointer

    def _claim(self, node: Node) -> Evidence:
        found = self.problems.fields(node, ("speaks", "claim", "source"))
        return Evidence(
            speaks=self.problems.choice(found.get("speaks"), ("for", "against")),
            claim=self.problems.text(found.get("claim")),
            source=self._pointer(found.get("source")),
        )

    def _gain_term(self, node: Node, basis: str) -> GainTerm:
        if basis == UPPER_BOUND:
            ceiling = self.problems.fields(node, ("pool", "high"))
            high, high_fact = self._high_end(ceiling.get("high"))
            return GainTerm(self._fact_of_unit(ceiling.get("pool"), "ns"), 0.0, None, high, high_fact)
        found = self.problems.fields(node, ("pool", "low", "high"), ("likely",))
        before = len(self.problems.found)
        low = self.problems.number(found.get("low"), 0.0, 1.0)
        high, high_fact = self._high_end(found.get("high"))
        likely = (low + high) / 2
        if "likely" in found:
            likely = self.problems.number(found["likely"], 0.0, 1.0)
            if high_fact:
                self.problems.add(found["likely"], "likely is the midpoint where high comes from a fact: leave it out")
        if found and len(self.problems.found) == before and not low <= likely <= high:
            self.problems.add(node, f"expected low <= likely <= high, found {low:g}, {likely:g}, {high:g}")
        return GainTerm(self._fact_of_unit(found.get("pool"), "ns"), low, likely, high, high_fact)

    def _high_end(self, node: Node | None) -> tuple[float, str]:
        if node is not None and isinstance(node.value, Mapping):
            found = self.problems.fields(node, ("one_minus_fact",))
            return 1.0, self._fact_of_unit(found.get("one_minus_fact"), "fraction")
        return self.problems.number(node, 0.0, 1.0), ""

    def _known_fact(self, node: Node | None) -> str:
        name = self.problems.text(node)
        if node is not None and name and not is_known_fact(name):
            self.problems.add(node, f"unknown fact {name}{suggest(name, GLOSSARY_BY_NAME)}")
        return name

    def _fact_of_unit(self, node: Node | None, unit: str) -> str:
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
