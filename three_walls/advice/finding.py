"""What judging the rules gives: a finding per rule with its outcome, the plan of edits, and the overrides for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from three_walls.lib.fact import FactValue
from three_walls.tables.buckets import SubWall, Wall

EXECUTION_ONLY, CONVERGENCE_CHANGING = "execution-only", "convergence-changing"
APPLICABILITIES = (EXECUTION_ONLY, CONVERGENCE_CHANGING, "benchmark-only")
"""What the edits of a rule change: speed alone, what the model learns, or what a production run needs."""
NEEDS_ALLOW = "The rule is {0}, so it needs --allow {0}."
"""How the reason of a finding begins that its applicability (``{0}``) alone keeps out of a plan."""

REPLAYED, UPPER_BOUND, FREES_MEMORY, NO_BASIS = "replayed", "upper_bound", "frees_memory", "none"
BASES = (REPLAYED, UPPER_BOUND, FREES_MEMORY, NO_BASIS)
"""What a gain rests on: replays of the step, a time of the step that it cannot exceed, memory instead of time, or
nothing. ``report/sections/facts.py`` defines them."""


class Outcome(StrEnum):
    """Every rule ends in exactly one of these."""

    NOT_APPLICABLE = "not_applicable"  # for other hardware, another framework or another model
    NOT_NEEDED = "not_needed"  # the symptom is absent
    UNKNOWN = "unknown"  # a fact is missing; the finding names it and how to capture it
    BLOCKED = "blocked"  # a requirement fails; the finding names it with its reason
    RECOMMENDED = "recommended"
    FOUND = "found"  # the symptom is present and no setting fixes it; the advice states what may
    ALTERNATIVE = "alternative"  # would help, but a better rule has its lever
    ERROR = "error"  # judging the rule failed; the rest of the report is complete


@dataclass(frozen=True, slots=True)
class Gain:
    """Time that a step may save, in nanoseconds; null where it is not known, for the reason in ``explanation``.

    A negative number is time that it may cost: of a plan's entry only ``low`` can be negative, of a finding all three.
    Of an upper bound only ``likely`` is null: up to ``high`` is saved, but no replay tells how much of it.
    """

    low: int | None
    likely: int | None
    high: int | None
    basis: str
    """What the gain rests on: ``replayed``, ``upper_bound``, ``frees_memory`` or ``none``."""
    explanation: str = ""
    """How it was estimated, or why it is not known."""
    cost_fraction: float | None = None
    """For an edit that frees memory, the share of the step that it costs by replay; null where that is not known, and
    for all other edits."""


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """A setting to change."""

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
    """Whether ``to`` comes from adding elements to the list that the run or an earlier edit sets, or removing some."""


@dataclass(frozen=True, slots=True)
class PlanNote:
    """A sentence with its source: a requirement that fails, something to confirm first, or evidence."""

    name: str
    """Name of the requirement; empty for evidence."""
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule judged against a run."""

    rule: str
    """Id of the rule."""
    title: str
    outcome: Outcome
    wall: Wall
    sub_wall: SubWall | None
    lever: str
    """What the edits change: at most one rule per lever enters the plan."""
    reason: str
    """Why this is the outcome: a sentence with the numbers that were compared."""
    missing: tuple[str, ...]
    """Names of the facts that the rule needs and that are missing."""
    blocked_by: tuple[PlanNote, ...]
    """Requirements that fail."""
    confirm_first: tuple[PlanNote, ...]
    """What a person must check before the edits are applied."""
    edits: tuple[PlannedEdit, ...]
    gain_ns: Gain
    how_to_verify: str = ""
    why_it_matters: str = ""
    side_effects: tuple[str, ...] = ()
    evidence_for: tuple[PlanNote, ...] = ()
    evidence_against: tuple[PlanNote, ...] = ()
    advice: str = ""
    """What to do where no setting fixes it."""
    applicability: str = "execution-only"
    """``execution-only``; ``convergence-changing`` and ``benchmark-only`` are planned with ``--allow`` only."""
    configured: str = ""
    """What the configuration asks for and this rule looks for; it does not happen where the outcome is ``found``. Empty
    for other rules, and where the configuration is not known to ask for it."""
    cause: str = ""
    """Why it does not happen, as far as trace and environment name a cause."""
    instead_of: str = ""
    """Id of the rule of the plan's entry that keeps it out: if that cannot be applied, this may be; else empty."""
    near: str = ""
    """What misses its threshold by little, where a rule is not needed or blocked for this reason alone; else empty."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest and the highest value."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """An entry of the plan. Its gain applies to the step that the earlier entries leave."""

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
    """Step after this entry and all before it, with the range of what they gain together: it is narrower than the sums
    of the ends of their gains, each of which is at its worst or best. That of a rank to fix first is added up.

    Of the unprofiled step, where a log or a replay gives it, else of the traced one.
    """
    unlocked_by: str = ""
    """Rules of earlier entries that were needed to unblock this one, separated by commas."""
    step_after_likely_ns: int | None = None
    """The likely step after this entry and all before it, by replays without the profiler, and so are ``step_after_ns``
    and the gain. Null only of a rank to fix where the step cannot be replayed."""
    with_rule: str = ""
    """Id of the rule whose edits this entry makes, too: alone they gain too little. Empty for most entries."""
    overrides: Overrides | None = None
    """This entry alone, to apply to the run as it is, with all that it needs to be set; null where it cannot be applied
    alone."""
    no_overrides_reason: str = ""
    """Why there are none; empty where there are."""
    needs: tuple[str, ...] = ()
    """Rules of the earlier entries that have to be applied with this one, in the order of the plan. Empty where it can
    be applied alone."""
    differing_edits: tuple[PlannedEdit, ...] = ()
    """Edits in ``overrides`` that ``edits`` lacks or makes to another value: there the entry builds on earlier ones."""
    is_below_noise: bool = False
    """Whether its likely gain is less than the steps of the run differ by: alone it cannot be measured."""
    beyond_wall: str = ""
    """Why it may gain more than the replayed step without its wall does; empty where it may not."""
    seen_in: tuple[str, ...] = ()
    """Buckets and causes of gaps that hold the time it gains from; ``timeline.longest`` has their longest stretches.
    Empty where no stretch shows it."""


@dataclass(frozen=True, slots=True)
class FirstTrial:
    """The entry of the plan to apply first, on its own, with what the log and the next trace show if it worked."""

    rule: str
    title: str
    basis: str
    """Basis of its gain: ``replayed`` or ``frees_memory``; of a rank to fix that is not replayed ``upper_bound``."""
    saved_low_fraction: float | None
    """Share of the log's unprofiled step (without a log: of the traced step) that the entry may save, negative where it
    may cost time; null where its gain is not known."""
    saved_high_fraction: float | None
    unprofiled_step_ns: int | None
    """The log's step now; null without a log."""
    unprofiled_step_after_low_ns: int | None
    """The log's step if the gain is at its high end."""
    unprofiled_step_after_high_ns: int | None
    """The log's step if the gain is at its low end."""
    cost_fraction: float | None
    """For an entry that frees memory, roughly the share of the step that it costs; null for others."""
    must_show: str
    """What the next trace shows if the entry worked."""


@dataclass(frozen=True, slots=True)
class ConditionalLines:
    """Lines that are right under a condition alone, which the run does not meet or does not show."""

    launcher: str
    """The form that they belong to: ``bridge``, ``megatron_lm`` or ``python``."""
    condition: str
    """When to use them: ``needs Megatron Core 0.18 or later``."""
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overrides:
    """Edits of the plan, or of one entry, spelled for each launcher.

    They are not quoted for a shell; the lines of overrides.txt are.

    The lines of each form are those that the run's release takes, or that every release takes if it is not known.
    """

    bridge_version: str
    """Megatron-Bridge release, or the range of releases, that they are spelled for."""
    bridge: tuple[str, ...]
    """Hydra overrides, one per element."""
    megatron_lm: tuple[str, ...]
    """Flags, each with its values behind it, separated by spaces."""
    env: Mapping[str, str]
    """Environment variables by name."""
    notes: tuple[str, ...] = ()
    """What no override or flag can express. Each note begins with the launcher's name, or with ``Applied alone``: what
    to confirm before an entry is applied alone, because in the plan earlier entries set it."""
    python: tuple[str, ...] = ()
    """Statements that make the same edits to a Megatron-Bridge recipe's ``cfg``."""
    conditional: tuple[ConditionalLines, ...] = ()
    """Lines apart from those of the forms, each with the condition under which they are right."""
