"""What judging the rules gives: findings, each with one outcome, and the plan of edits."""

from __future__ import annotations

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
    FOUND = "found"  # the symptom is there, and no edit of the configuration mends it; the advice says what may
    ALTERNATIVE = "alternative"  # would help, but its lever goes to a better rule
    ERROR = "error"  # the rule itself failed; the report still comes out


@dataclass(frozen=True, slots=True)
class Gain:
    """Time one step may get back, in ns; ``None`` when it cannot be told, ``explanation`` says why.

    Of a ceiling only ``likely`` is None: at most ``high`` go, and how much of it nobody measured.
    """

    low: int | None
    likely: int | None
    high: int | None
    basis: str
    """One of ``rules.BASES``."""
    explanation: str = ""
    cost_fraction: float | None = None
    """Of what makes room in memory: about what share of the step it costs; None for all else."""
    cost_is_estimated: bool = False
    """Nobody measured that cost."""


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """One setting to change. ``from_value`` is the run's value now (``None``: unset or unknown)."""

    key: str
    from_value: FactValue
    to: FactValue
    kind: str  # config | env
    changes_numerics: bool
    reason: str = ""
    relative: bool = False
    """Elements were added to or removed from the list that the run, or an earlier edit, has."""


@dataclass(frozen=True, slots=True)
class Note:
    """A named sentence: a blocking requirement or something to confirm first, with reason and source."""

    name: str
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule judged against one run."""

    rule: str
    title: str
    outcome: Outcome
    wall: Wall
    sub_wall: SubWall | None
    lever: str
    reason: str
    """Why this outcome, in one sentence with the numbers compared."""
    missing: tuple[str, ...]
    blocked_by: tuple[Note, ...]
    confirm_first: tuple[Note, ...]
    edits: tuple[PlannedEdit, ...]
    gain_ns: Gain
    how_to_verify: str = ""
    why_it_matters: str = ""
    side_effects: tuple[str, ...] = ()
    evidence_for: tuple[Note, ...] = ()
    evidence_against: tuple[Note, ...] = ()
    advice: str = ""
    applicability: str = "execution-only"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One entry of the plan: its gain is on the step that the earlier entries leave."""

    order: int
    finding: Finding
    edits: tuple[PlannedEdit, ...]
    gain_ns: Gain
    step_after_low_ns: int
    """Step if every gain so far is at its high end."""
    step_after_high_ns: int
    """Step if every gain so far is at its low end."""
    unlocked_by: str = ""
    """Rules of the earlier entries without which this one was blocked, separated by commas."""


@dataclass(frozen=True, slots=True)
class FirstTrial:
    """The one entry of the plan to try first, alone, and what the log and the next trace must show if it worked."""

    rule: str
    title: str
    basis: str
    """That of its gain: of a ceiling, or of what makes room, no likely gain is known."""
    saved_low_fraction: float | None
    """Share of the traced step that the entry may give back; None where its gain is not known."""
    saved_high_fraction: float | None
    unprofiled_step_ns: int | None
    """The log's step now; None without a log."""
    unprofiled_step_after_low_ns: int | None
    unprofiled_step_after_high_ns: int | None
    cost_fraction: float | None
    """About what share of the step an entry costs that makes room; None for others."""
    cost_is_estimated: bool
    must_show: str


@dataclass(frozen=True, slots=True)
class Overrides:
    """The plan's edits spelled for a launcher, not quoted for a shell.

    ``bridge`` holds one override each, ``megatron_lm`` one flag with its values each, a space before every value.
    """

    bridge_version: str
    bridge: tuple[str, ...]
    megatron_lm: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    """Statements that make the same edits of a Megatron-Bridge recipe's ``cfg``."""
