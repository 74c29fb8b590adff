"""A rule: comparisons over named facts, plus prose, edits, a gain model and evidence."""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.model.buckets import SubWall, Wall
from three_walls.model.fact import FactValue

OPERATORS = (
    "equals",
    "not_equals",
    "one_of",
    "none_of",
    "within",
    "at_least",
    "at_most",
    "above",
    "below",
    "is_set",
    "includes",
    "excludes",
)
"""``includes`` and ``excludes`` look for an element of a list or for a part of a text."""

EXECUTION_ONLY = "execution-only"
RULE_CLASSES = (EXECUTION_ONLY, "convergence-changing", "benchmark-only")
"""What edits of a rule touch: speed alone, what the model learns, or what a production run must not have."""

PHASES = ("fit", "scale", "profile")
"""In the order of the guides: make the run fit, choose its layout, then work on what a profile shows."""

OPERATIONS = ("set", "add", "remove")

UPPER_BOUND, FREES_MEMORY, NO_BASIS = "upper_bound", "frees_memory", "none"
BASES = ("measured", "modelled", "range", UPPER_BOUND, FREES_MEMORY, NO_BASIS)
"""What a gain rests on: a before and after pair, a calculation, a range with a judged likely value, a ceiling of which
nobody measured how much goes, memory in place of time, or nothing."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison: fact, operator of :data:`OPERATORS`, operand."""

    fact: str
    operator: str
    operand: FactValue


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must hold before the edit is safe. ``checks`` empty: a person must ``confirm`` it.

    Several checks are alternatives when ``any_of`` is set, else all must hold.
    """

    name: str
    checks: tuple[Condition, ...]
    any_of: bool
    confirm: str
    reason: str
    source: str
    fix: tuple[Edit, ...] = ()
    """Edits that make it hold where it does not: they then join the rule's own."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Set ``key`` to ``to``. ``kind`` is ``config`` (Megatron Core name) or ``env`` (variable name).

    With ``to_fact`` the target is the value of that fact, read when the rule is judged. With the ``operation``
    ``add`` or ``remove`` the key is a list, and ``to`` holds the elements that join or leave it.
    """

    key: str
    to: FactValue
    kind: str = "config"
    from_value: FactValue = None
    only_if: tuple[Condition, ...] = ()
    """The edit is left out where these are known not to hold."""
    changes_numerics: bool = False
    reason: str = ""
    source: str = ""
    to_fact: str = ""
    operation: str = "set"


@dataclass(frozen=True, slots=True)
class GainTerm:
    """Part of a gain: ``fraction`` of the time in fact ``pool`` disappears (low, likely, high).

    Of a ceiling only ``high`` is known: ``low`` is 0 and ``likely`` None. With ``high_one_minus_fact`` the high end is
    one minus that fact and the likely one, unless it is None, the midpoint.
    """

    pool: str
    low: float
    likely: float | None
    high: float
    high_one_minus_fact: str = ""


@dataclass(frozen=True, slots=True)
class GainModel:
    """How much time an edit may give back: a sum of terms over pools of the step.

    ``shrinks_all_pools``: the edit removes a slice of everything (recompute), so every other pool
    shrinks by the same share of the step. ``hidden_under``: the gain cannot exceed this fact (compute
    that is there to hide communication under), ``at_most``: nor this one. ``basis`` is one of :data:`BASES`; where it
    is ``room`` or ``none`` there are no terms.
    """

    terms: tuple[GainTerm, ...]
    basis: str
    explanation: str
    shrinks_all_pools: bool = False
    hidden_under: str = ""
    at_most: str = ""
    cost_fraction: float | None = None
    """Of the basis ``room``: about what share of the step the edits cost. The cheapest goes first."""
    cost_is_estimated: bool = False
    """Nobody measured that cost: it orders the rules."""

    @property
    def is_ceiling(self) -> bool:
        """Whether only the most that can go is known."""
        return any(term.likely is None for term in self.terms)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A claim for or against the edit, with its source."""

    speaks: str
    claim: str
    source: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One piece of advice; the YAML file of the same id is its source."""

    id: str
    wall: Wall
    sub_wall: SubWall | None
    title: str
    rule_class: str
    what_it_looks_for: str
    why_it_matters: str
    how_to_verify: str
    applies_to: tuple[Condition, ...]
    when: tuple[Condition, ...]
    requires: tuple[Requirement, ...]
    lever: str
    edits: tuple[Edit, ...]
    side_effects: tuple[str, ...]
    gain: GainModel
    evidence: tuple[Evidence, ...]
    path: str = ""
    phase: str = "profile"
    """One of :data:`PHASES`; edits that make a run fit come before all others."""
    advice: str = ""
    """What to do where no edit of the configuration mends it; such a rule has no edits."""
