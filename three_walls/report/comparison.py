"""The comparison of runs and the history of a tuning: everything that a renderer may show of them, and the contract of
compare.json.

The fields of these types, in their order, are the fields of compare.json, as those of ``report/report.py`` are the
fields of report.json. BEFORE and AFTER are the runs as the user orders them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from three_walls.advice.finding import Gain
from three_walls.lib.fact import FactValue
from three_walls.lib.plain_data import ConfigData
from three_walls.tables.buckets import SubWall, Wall

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
    is_by_time: bool = False
    """Whether the runs are in the order in which they began; else in that of their names."""
    schema_version: str = SCHEMA_VERSION


class ChangeOutcome(StrEnum):
    """How the step changed."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no_difference"
    """The difference is no larger than the spread of the steps."""
    UNKNOWN = "unknown"
    """The steps are not known."""


class Severity(StrEnum):
    """What a difference between the runs does to the comparison."""

    REFUSAL = "refusal"
    """They are not comparable; they are compared with ``--force`` only."""
    WARNING = "warning"
    """They are comparable with this limit."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of the comparison."""

    name: str
    """As the user called it, else the name of its file or directory."""
    files: tuple[str, ...]
    """Names of its traces and logs: no directory leaves the machine."""
    has_trace: bool
    """False where only training logs were read: then only steps are compared."""
    traced_step_ns: int | None
    """The representative step as traced."""
    replayed_step_ns: int | None
    """The step without the profiler, by replay alone."""
    unprofiled_step_ns: int | None
    """Median of the unprofiled steps in the log."""
    tokens_per_step: int | None
    """Global batch size x sequence length."""
    world_size: int | None
    gpu: str | None
    wall: Wall | None
    sub_wall: SubWall | None
    verdict: str
    """The reason of the verdict."""
    next_entry: str
    """Title of the first entry of the plan; empty for an empty plan."""
    next_rule: str
    """Id of its rule."""
    next_gain: Gain | None


@dataclass(frozen=True, slots=True)
class StepChange:
    """The step of both runs on one basis. ``change_ns`` is ``after_ns - before_ns``: negative is faster."""

    basis: Basis
    basis_note: str
    """Why this basis."""
    before_ns: int | None
    after_ns: int | None
    change_ns: int | None
    per_token_after_ns: int | None
    """AFTER's step scaled to the tokens per GPU of BEFORE's: the outcome is of this one. Null where both steps process
    as many tokens, or where the tokens are not known."""
    change_fraction: float | None
    """(AFTER - BEFORE) / BEFORE, per token where the tokens differ."""
    spread_ns: int | None
    """What the steps of both runs vary by: the sum of half the quartiles' distance in each log, or of half the range of
    the kept steps (of a replay: of its estimate, if that is wider) in each trace; with repetitions of BEFORE at least
    what those differ by. Null where it is not known."""
    spread_note: str
    """What the spread is of, or why it is not known."""
    outcome: ChangeOutcome
    fractions_of_repetitions: tuple[float, ...] = ()
    """The same as ``change_fraction`` against each repetition of BEFORE, in their order."""


@dataclass(frozen=True, slots=True)
class Unlikeness:
    """Something other than a tuning knob in which the runs differ."""

    code: str
    """Stable; the message is for people."""
    severity: Severity
    message: str


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting with different values in the runs."""

    key: str
    kind: str
    """``config`` or ``env``."""
    before: ConfigData
    """Null: unset."""
    after: ConfigData
    follows: bool
    """Whether AFTER's value is a default or follows from other settings: then nobody set it."""
    rules: tuple[str, ...]
    """Rules that propose it, those of BEFORE's plan first."""
    note: str
    """What BEFORE's report states of it, where no entry of its plan makes this change."""


@dataclass(frozen=True, slots=True)
class BucketChange:
    """Time of one bucket in the traced step. The rows of both runs sum to their traced steps."""

    bucket: str
    group: str
    before_ns: int
    after_ns: int
    change_ns: int


@dataclass(frozen=True, slots=True)
class BucketReconciliation:
    """The change of the step, bucket by bucket: the changes of all rows less that of the profiler sum to it exactly."""

    rows: tuple[BucketChange, ...]
    """The largest change first; buckets without time in either run are left out."""
    traced_before_ns: int
    traced_after_ns: int
    traced_change_ns: int
    """Sum of the rows' changes."""
    profiler_before_ns: int
    """Traced step less the compared step of BEFORE: what the profiler added; 0 where traced steps are compared."""
    profiler_after_ns: int
    profiler_change_ns: int
    step_change_ns: int
    """``traced_change_ns - profiler_change_ns``: the change of the compared step."""


@dataclass(frozen=True, slots=True)
class CommunicationChange:
    """One communication class in the representative steps."""

    communication_class: str
    before_busy_ns: int
    after_busy_ns: int
    before_exposed_ns: int
    after_exposed_ns: int
    exposed_change_ns: int


@dataclass(frozen=True, slots=True)
class KernelChange:
    """Kernels of one name in one bucket. Times are sums of durations, which overlap where kernels run concurrently."""

    bucket: str
    name: str
    """Empty for the row that sums the kernels which are not listed."""
    status: str
    """``changed``, ``new``, ``gone``, ``rest``; ``small_before``, ``small_after``: the report of that run does not list
    it; if it ran at all, its time is in the rest of the bucket."""
    before_calls: int
    after_calls: int
    before_ns: int
    after_ns: int
    change_ns: int


@dataclass(frozen=True, slots=True)
class KernelBucket:
    """Kernel time of one bucket against the time that it owns in the step; the changes of both differ by overlap."""

    bucket: str
    kernel_change_ns: int
    """Sum of the changes of its kernels."""
    overlap_change_ns: int
    """Change of the kernel time that the bucket does not own: concurrent kernels, and time that an earlier bucket
    owns."""
    owned_change_ns: int
    """``kernel_change_ns - overlap_change_ns``: the bucket's row in the budget."""


@dataclass(frozen=True, slots=True)
class KernelReconciliation:
    """The change of kernel time. The kernels of a bucket sum to its ``kernel_change_ns``."""

    rows: tuple[KernelChange, ...]
    """The largest change first, then a row per bucket that sums the rest."""
    buckets: tuple[KernelBucket, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """BEFORE against one AFTER."""

    after: ComparedRun
    step: StepChange
    unlike: tuple[Unlikeness, ...]
    settings: tuple[SettingChange, ...]
    settings_are_known: bool
    """Whether settings of both runs are known."""
    settings_note: str
    """How far the settings of both runs are known."""
    trial: Trial
    budget: BucketReconciliation | None
    """Null where one of the runs has no traced step, or no step on the basis that is compared."""
    communication: tuple[CommunicationChange, ...]
    kernels: KernelReconciliation | None
    """Null where one of the reports lists no kernels."""


class ConditionOutcome(StrEnum):
    """What became of a condition of ``--fail-if``."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does_not_hold"
    WITHIN_SPREAD = "within_spread"
    """It would hold, but the difference is no larger than the spread of the steps."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """A condition of ``--fail-if`` for one AFTER."""

    expression: str
    after: str
    """Name of the run."""
    outcome: ConditionOutcome
    unit: str
    before_value: float | None
    after_value: float | None
    reason: str
    """Why it is not known, or what was compared, in a sentence."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """BEFORE against every AFTER."""

    tool_version: str
    before: ComparedRun
    pairs: tuple[Pair, ...]
    repetitions: tuple[ComparedRun, ...] = ()
    """Further runs of BEFORE: what they differ by counts as spread."""
    gate: tuple[ConditionResult, ...] = ()
    """Conditions of ``--fail-if``, for each AFTER in turn."""
    schema_version: str = SCHEMA_VERSION
