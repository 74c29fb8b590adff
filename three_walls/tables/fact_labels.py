"""What facts are called in sentences: the words of ``tables/fact-labels.yaml``."""

from __future__ import annotations

from functools import cache

from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Row, Text, load_table


class FlagSentences(Row):
    """What a flag says when it is true and when it is false."""

    yes: Text
    no: Text


class Share(Row):
    """A fraction that is not one of the step's time."""

    label: Text
    of: Text
    """What it is a fraction of."""


class FactLabels(Row):
    times: dict[Text, Text]
    """By name without its ending ``_ns`` or ``_fraction`` (of the step)."""
    shares: dict[Text, Share]
    quantities: dict[Text, Text]
    flags: dict[Text, FlagSentences]

    def label(self, fact: str) -> str:
        """The subject of a sentence about ``fact``: a label, the key of a setting, or the words of its name."""
        if fact in self.shares:
            return self.shares[fact].label
        for labels, name in ((self.times, _base_of(fact)), (self.quantities, fact)):
            if name in labels:
                return labels[name]
        for prefix in ("config.", "env."):
            if fact.startswith(prefix):
                return fact.removeprefix(prefix)
        words = (_base_of(fact) or fact).replace("_", " ")
        return words[:1].upper() + words[1:]

    def whole(self, fact: str) -> str:
        """What ``fact`` is a fraction of; empty where no entry says so."""
        if fact in self.shares:
            return self.shares[fact].of
        return "the step" if self.is_time(fact) and fact.endswith("_fraction") else ""

    def is_time(self, fact: str) -> bool:
        """Whether ``fact`` is a time of the step, or its fraction of the step."""
        return _base_of(fact) in self.times


def _base_of(fact: str) -> str:
    for ending in ("_ns", "_fraction"):
        if fact.endswith(ending):
            return fact.removesuffix(ending)
    return ""


@cache
def fact_labels() -> FactLabels:
    """The labels that ship with the program."""
    return load_table(TABLES_DIR / "fact-labels.yaml", FactLabels)
