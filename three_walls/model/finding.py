"""What judging the rules gives: findings, each with one outcome, and the plan of edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from three_walls.model.buckets import SubWall, Wall
from three_walls.model.fact import FactValue


class Outcome(StrEnum):
    """Every rule ends in exactly one of these."""

    NOT_APPLICABLE = "not_applicable"  # other hardware, framework or model
    NOT_NEEDED = "not_needed"  # the symptom is absent
    UNKNOWN = "unknown"  # a fact is missing; named, with how to capture it
    BLOCKED = "blocked"  # a requirement fails; named, with its reason
    RECOMMENDED = "recommended"
    FOUND = "found"  # the symptom is there and no setting fixes it; the advice says what may
    ALTERNATIVE = "alternative"  # would help, but its lever goes to a better rule
    ERROR = "error"  # the rule itself failed; the report still comes out


@dataclass(frozen=True, slots=True)
class Gain:
    """Time one step may save, in nanoseconds; null when it is not known, for the reason in ``explanation``.

    Of an upper bound only ``likely`` is null: up to ``high`` is saved, and how much of it was not measured.
    """

    low: int | None
    likely: int | None
    high: int | None
    basis: str
    """What the gain rests on: ``measured``, ``modelled``, ``range``, ``upper_bound``, ``frees_memory`` or ``none``."""
    explanation: str = ""
    """How it was estimated, or why it is not known."""
    cost_fraction: float | None = None
    """Share of the step that an edit costs which frees memory, roughly; null for all other edits."""
    cost_is_estimated: bool = False
    """That cost is an estimate, not a measurement."""


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """One setting to change."""

    key: str
    """Megatron Core name of the setting, or name of the environment variable."""
    from_value: FactValue
    """The run's value now; null: unset or unknown."""
    to: FactValue
    """The new value; null: unset it."""
    kind: str
    """``config`` or ``env``."""
    changes_numerics: bool
    """Whether results may differ in the last bits."""
    reason: str = ""
    relative: bool = False
    """Whether elements were added to, or removed from, the list that the run or an earlier edit has."""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence with its source: a requirement that fails, something to confirm first, or evidence."""

    name: str
    """Name of the requirement; empty for evidence."""
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule judged against one run."""

    rule: str
    """Id of the rule."""
    title: str
    outcome: Outcome
    wall: Wall
    sub_wall: SubWall | None
    lever: str
    """What the edits turn: at most one rule per lever enters the plan."""
    reason: str
    """Why this outcome, in one sentence with the numbers compared."""
    missing: tuple[str, ...]
    """Names of the facts that the rule needs and that are missing."""
    blocked_by: tuple[Note, ...]
    """Requirements that fail."""
    confirm_first: tuple[Note, ...]
    """What a person must check before the edits are applied."""
    edits: tuple[PlannedEdit, ...]
    gain_ns: Gain
    how_to_verify: str = ""
    why_it_matters: str = ""
    side_effects: tuple[str, ...] = ()
    evidence_for: tuple[Note, ...] = ()
    evidence_against: tuple[Note, ...] = ()
    advice: str = ""
    """What to do where no setting fixes it."""
    applicability: str = "execution-only"
    """``execution-only``; ``convergence-changing`` and ``benchmark-only`` are planned with ``--allow`` only."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A lowest and a highest value."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One entry of the plan: its gain is on the step that the earlier entries leave."""

    order: int
    """Position in the plan, from 1; 0 for a rank that must be fixed before anything is tuned (without edits)."""
    rule: str
    """Id of the rule."""
    finding: Finding
    """The rule as judged after the earlier entries: its numbers may differ from those in ``findings``."""
    edits: tuple[PlannedEdit, ...]
    gain_ns: Gain
    """Gain on the step that the earlier entries leave; the finding's own is on the step as traced."""
    step_after_ns: Bounds
    """Step after this entry and all before it: ``low`` if every gain is at its high end, ``high`` at its low end."""
    unlocked_by: str = ""
    """Rules of the earlier entries without which this one was blocked, separated by commas."""


@dataclass(frozen=True, slots=True)
class FirstTrial:
    """The entry of the plan to apply first, on its own, and what the log and the next trace show if it worked."""

    rule: str
    title: str
    basis: str
    """Basis of its gain: an upper bound, or an edit that frees memory, has no likely gain."""
    saved_low_fraction: float | None
    """Share of the traced step that the entry may save; null where its gain is not known."""
    saved_high_fraction: float | None
    unprofiled_step_ns: int | None
    """The log's step now; null without a log."""
    unprofiled_step_after_low_ns: int | None
    """The log's step if the gain is at its high end."""
    unprofiled_step_after_high_ns: int | None
    """The log's step if the gain is at its low end."""
    cost_fraction: float | None
    """Share of the step, roughly, that an entry costs which frees memory; null for others."""
    cost_is_estimated: bool
    must_show: str
    """What the next trace shows if the entry worked."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The plan's edits spelled for a launcher, not quoted for a shell (the lines of overrides.txt are)."""

    bridge_version: str
    """Megatron-Bridge release that they are spelled for."""
    bridge: tuple[str, ...]
    """Hydra overrides, one each."""
    megatron_lm: tuple[str, ...]
    """Flags, each with its values, a space before every value."""
    env: Mapping[str, str]
    """Variable to value."""
    notes: tuple[str, ...] = ()
    """What no line can express; it begins with the launcher's name."""
    python: tuple[str, ...] = ()
    """Statements that make the same edits to a Megatron-Bridge recipe's ``cfg``."""
