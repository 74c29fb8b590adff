"""Types of fields that several parts of a rule file have: prose, and names of facts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from three_walls.advice.format.conditions import KnownFacts
from three_walls.lib.fact import FactSheet
from three_walls.lib.load_documents import Text, between


def _check_fact(unit: str) -> AfterValidator:
    """The check that a text is the name of a fact, in ``unit`` where one is given."""

    def check(name: str, info: ValidationInfo) -> str:
        known: KnownFacts = (info.context or {})["facts"]
        if problem := known.check(name, unit):
            raise ValueError(problem)
        return name

    return AfterValidator(check)


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _check_id(identifier: str, info: ValidationInfo) -> str:
    path: Path = (info.context or {})["path"]
    if identifier != path.stem:
        raise ValueError(f"expected the file's name {path.stem} as id, found {identifier}")
    return identifier


FileId = Annotated[Text, AfterValidator(_check_id)]
"""An id, which is the name of its file."""
Prose = Annotated[Text, AfterValidator(_join_lines)]
"""Sentences, with line breaks of the file removed."""
AnyFact = Annotated[Text, _check_fact("")]
TimeFact = Annotated[Text, _check_fact("ns")]
FractionFact = Annotated[Text, _check_fact("fraction")]
Fraction = Annotated[float, between(0, 1)]


@dataclass(frozen=True, slots=True)
class OneMinusFact:
    """One minus a measured fraction."""

    one_minus_fact: FractionFact

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts that it needs."""
        return (self.one_minus_fact,)

    def read(self, facts: FactSheet) -> float:
        """The number; 1 where the fact is missing."""
        return 1 - (facts.number(self.one_minus_fact) or 0.0)
