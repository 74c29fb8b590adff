"""The history of a tuning, as a report and a comparison show it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from three_walls.advice.finding import Gain
from three_walls.lib.fact import FactValue

SCHEMA_VERSION = "1.0"
"""Version of compare.json: the minor grows when fields are added, the major when one is renamed or changes meaning."""


class Basis(StrEnum):
    """Which step is compared. Both runs are taken on the same basis, except for ``mixed``."""

    LOG = "log"
    """Median of the unprofiled steps in the training logs."""
    REPLAY = "replay"
    """The step that a replay predicts without the profiler."""
    TRACE = "trace"
    """The representative step as traced: it contains what the profiler added."""
    MIXED = "mixed"
    """The log's step of one run, and of the other, which has no log, the step that a replay predicts."""
    NONE = "none"
    """No step of both runs is known."""


class Judgement(StrEnum):
    """A measured gain against the predicted range."""

    INSIDE = "inside"
    BELOW = "below"
    """Less was saved than the low end, by more than the spread of the steps."""
    ABOVE = "above"
    """More was saved than the high end, by more than the spread of the steps."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TriedEntry:
    """An entry of BEFORE's plan that AFTER applied, with the gain predicted and the gain measured."""

    order: int
    rule: str
    title: str
    settings: tuple[str, ...]
    """Of the settings that it edits, those that differ between the runs."""
    is_whole: bool
    """Whether AFTER has all values that the entry sets."""
    predicted: Gain
    measured_ns: int | None
    """Time that the step lost; null where other settings differ too."""
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Trial:
    """What BEFORE's plan predicted for the settings that differ, and what was measured."""

    entries: tuple[TriedEntry, ...]
    other_settings: tuple[str, ...]
    """Settings that differ and belong to none of the entries, without those that follow from others."""
    predicted_low_ns: int | None
    """Sum over the entries; null where one is not known, or where none was applied as a whole."""
    predicted_high_ns: int | None
    measured_ns: int | None
    """Time that the step lost with all differences together."""
    judgement: Judgement
    """Of all entries together; unknown where other settings differ too."""


class Decision(StrEnum):
    """What became of a run in a history."""

    BASE = "base"
    ACCEPTED = "accepted"
    """Faster than the run that it builds on, beyond the spread."""
    REVERTED = "reverted"
    """Not faster beyond the spread."""
    REPEATED = "repeated"
    """It has the settings of an earlier run: what they differ by counts as spread."""
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True, slots=True)
class TriedRun:
    """One run of a history against the run that it builds on."""

    name: str
    decision: Decision
    against: str
    """Name of the earlier run that it differs least from in settings, else of the best run before it; empty for the
    base."""
    step_ns: int | None
    """On the basis of the comparison."""
    basis: Basis
    change_ns: int | None
    change_fraction: float | None
    spread_ns: int | None
    rules: tuple[str, ...]
    """Entries of the plan of ``against`` that it applied."""
    settings: tuple[str, ...]
    """``key: before -> after`` of the settings that differ and were set."""
    predicted_low_ns: int | None
    predicted_high_ns: int | None
    measured_ns: int | None
    judgement: Judgement
    reason: str
    """Why it was decided so."""


@dataclass(frozen=True, slots=True)
class NextTrial:
    """The entry to try next: of the plan of the best run, the first that was not tried."""

    rule: str
    title: str
    gain: Gain
    edits: tuple[tuple[str, FactValue], ...]
    bridge: tuple[str, ...]
    megatron_lm: tuple[str, ...]
    env: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class History:
    """Runs in the order in which they were made: what was tried, what it gave, and what to try next."""

    tool_version: str
    runs: tuple[TriedRun, ...]
    best: str
    """Name of the fastest run that was accepted, or of the base."""
    best_step_ns: int | None
    first_step_ns: int | None
    """The base's step, on the same basis as ``best_step_ns``; null where they have none in common."""
    next_trial: NextTrial | None
    no_next_reason: str
    """Why nothing is proposed; empty where something is."""
    planned_by: str
    """Name of the run that has the plan: the best run, or the last one accepted before it that was traced."""
    skipped: tuple[str, ...]
    """Entries of the best run's plan that come before the next one and were tried already."""
    schema_version: str = SCHEMA_VERSION
