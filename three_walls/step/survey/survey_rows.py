"""Rows of the report about all ranks of a run of many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SurveyedRank:
    """One rank of a surveyed run, in its median kept step. The first four times sum to the step."""

    rank: int
    host: str | None
    stage: int | None
    """Pipeline stage, from 0; null without a pipeline, or where the layout is not known."""
    compute_ns: int
    """Owned by compute kernels."""
    communication_ns: int
    """Owned by communication: exposed."""
    idle_ns: int
    """Nothing on the device."""
    other_ns: int
    """Owned by copies, and by graphs recorded as a whole."""
    step_ns: int
    wait_ns: int
    """Of ``communication_ns``: waiting for peers."""
    remark: str = ""
    """Why it was read in full, or how it differs from the others; empty for the others."""


@dataclass(frozen=True, slots=True)
class RankSpread:
    """How one time differs between the ranks of a surveyed run, or of one host or pipeline stage of it."""

    quantity: str
    """``step``, ``compute``, ``communication``, ``idle``, ``wait``, or the waiting of one communication class."""
    ranks_count: int
    least_ns: int
    least_rank: int
    median_ns: int
    p95_ns: int
    """95th percentile."""
    most_ns: int
    most_rank: int


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of one host or of one pipeline stage; times are medians over its ranks."""

    kind: str
    """``host`` or ``stage``."""
    name: str
    ranks_count: int
    step_ns: int
    compute_ns: int
    communication_ns: int
    wait_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class LostTrace:
    """A trace that could not be read."""

    input_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """All ranks of a run of which only some were read in full.

    Clocks, matched calls, waits and late ranks are worked out from every rank. What needs more of a rank than its
    summary (causes of gaps, the replay, ``Report.ranks``, ``Report.waits``) is of the ranks in ``in_full``.
    """

    ranks_count: int
    """Ranks that were surveyed."""
    in_full: tuple[int, ...]
    """Numbers of those that were read in full too."""
    lost: tuple[LostTrace, ...]
    late_ranks_count: int
    """Ranks that are late; causes are known of those read in full."""
    spreads: tuple[RankSpread, ...]
    groups: tuple[RankGroup, ...]
    """The hosts, then the pipeline stages; those with most compute first."""
    ranks: tuple[SurveyedRank, ...]
    """All of them, by rank."""
