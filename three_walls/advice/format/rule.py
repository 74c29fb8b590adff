"""A rule: conditions on named facts, the edits it proposes, a model of their gain, and evidence."""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.lib.expressions import Clause
from three_walls.lib.fact import FactValue
from three_walls.replay.transformation import Transformation
from three_walls.tables.buckets import SubWall, Wall

EXECUTION_ONLY = "execution-only"
APPLICABILITIES = (EXECUTION_ONLY, "convergence-changing", "benchmark-only")
"""What the edits of a rule change: speed alone, what the model learns, or what a production run needs."""

OPERATIONS = ("set", "add", "remove")

REPLAYED, UPPER_BOUND, FREES_MEMORY, NO_BASIS = "replayed", "upper_bound", "frees_memory", "none"
RULE_BASES = ("measured", "modelled", "range", UPPER_BOUND, FREES_MEMORY, NO_BASIS)
"""Those that a rule may state."""
BASES = (REPLAYED, *RULE_BASES)
"""What a gain rests on: replays of the step, a before and after pair, a calculation, a range with a judged likely
value, an upper bound of which nobody measured how much an edit saves, memory instead of time, or nothing.
``terms.GAIN_BASES`` defines them."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must hold for the edits to be safe. Without ``checks`` a person must ``confirm`` it."""

    name: str
    checks: tuple[Clause, ...]
    confirm: str
    reason: str
    source: str
    fix: tuple[Edit, ...] = ()
    """Edits that make it hold where it does not; they then join the rule's own edits."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Sets ``key`` to ``to``. ``kind`` is ``config`` (Megatron Core name) or ``env`` (variable name).

    With ``to_fact`` the new value is that of the fact when the rule is judged. With the ``operation`` ``add`` or
    ``remove`` the key is a list, and ``to`` holds the elements to add or remove.
    """

    key: str
    to: FactValue
    kind: str = "config"
    only_if: tuple[Clause, ...] = ()
    """The edit is left out where these are known not to hold."""
    changes_numerics: bool = False
    reason: str = ""
    source: str = ""
    to_fact: str = ""
    operation: str = "set"


@dataclass(frozen=True, slots=True)
class GainTerm:
    """Part of a gain: the fraction (low, likely, high) of the time in the fact ``pool`` that disappears.

    An upper bound has only a ``high`` end: ``low`` is 0 and ``likely`` None. With ``high_one_minus_fact`` the high end
    is one minus that fact, and the likely value is the midpoint, unless it is None.
    """

    pool: str
    low: float
    likely: float | None
    high: float
    high_one_minus_fact: str = ""


@dataclass(frozen=True, slots=True)
class GainModel:
    """How much time the edits may save: a sum of terms over pools, which are facts that measure parts of the step."""

    terms: tuple[GainTerm, ...]
    """Empty for the bases ``frees_memory`` and ``none``."""
    basis: str
    """One of :data:`BASES`."""
    explanation: str
    shrinks_all_pools: bool = False
    """The edits remove a share of everything (recompute), so every other pool shrinks by the same fraction."""
    hidden_under: str = ""
    """A fact that the gain cannot exceed: compute that can hide communication."""
    at_most: str = ""
    """Another fact that the gain cannot exceed."""
    added: str = ""
    """A fact: time that the edits add to the step, and that the gain is net of."""
    cost_fraction: float | None = None
    """For the basis ``frees_memory``, roughly the fraction of the step that the edits cost. The cheapest rule goes
    first."""
    cost_is_estimated: bool = False
    """Nobody measured that cost: it only orders the rules."""
    replay: tuple[Transformation, ...] = ()
    """What the edits change in a replay of the step. The terms then count only where no replay is to be trusted."""
    no_replay: str = ""
    """Why no transformation of the step stands for the edits; empty where ``replay`` does, or nothing was stated."""
    chosen_by: tuple[str, ...] = ()
    """Settings without any effect of their own that choose how the edits work, and so which of ``replay`` applies."""

    @property
    def is_upper_bound(self) -> bool:
        """Whether only the most that can be saved is known."""
        return any(term.likely is None for term in self.terms)

    @property
    def frees_memory(self) -> bool:
        """Whether the edits free memory. Such rules come before all others in the plan of a run that does not fit."""
        return self.basis == FREES_MEMORY


@dataclass(frozen=True, slots=True)
class Evidence:
    """A claim with its source."""

    claim: str
    source: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to look at or do. Where ``when`` holds it comes first; without ``when`` it always applies."""

    text: str
    when: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, as its YAML file of the same id states it."""

    id: str
    wall: Wall
    sub_wall: SubWall | None
    title: str
    applicability: str
    """One of :data:`APPLICABILITIES`."""
    what_it_looks_for: str
    why_it_matters: str
    how_to_verify: str
    applies_to: tuple[Clause, ...]
    when: tuple[Clause, ...]
    requires: tuple[Requirement, ...]
    lever: str
    """What the edits change. A plan has at most one rule per lever, and those that continue it."""
    edits: tuple[Edit, ...]
    side_effects: tuple[str, ...]
    gain: GainModel
    evidence_for: tuple[Evidence, ...] = ()
    evidence_against: tuple[Evidence, ...] = ()
    path: str = ""
    """The file, relative to the directory of rules."""
    advice: tuple[Advice, ...] = ()
    """What to do where no setting helps. Such a rule has no edits."""
    any_program: bool = False
    """Whether the advice also holds for a program that is not known to be a Megatron training run."""
    continues: str = ""
    """The rule after which this one may enter a plan, to add to what that one sets."""


@dataclass(frozen=True, slots=True)
class WarningRule:
    """A warning that depends on facts: given where all of ``when`` hold and not all of ``unless``."""

    code: str
    when: tuple[Clause, ...]
    unless: tuple[Clause, ...]
    message: str
    """Sentences with placeholders ``{fact:form}``; ``advice/judge_warnings.py`` lists the forms."""
    per_straggler: bool = False
    """Judged once for each straggler, on its figures."""
    path: str = ""
