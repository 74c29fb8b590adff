"""The verdict, as the report holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from three_walls.lib.text import join_words, plural
from three_walls.tables.buckets import SubWall, Wall


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that holds all others back for a reason of its own: a slow GPU or a slow host, not more work."""

    rank: int
    cause: str
    """``slow_compute``, ``launch_starved``, ``host_blocked`` or ``unknown``."""
    cost_ns: int
    """Time per step that the representative rank loses to it: what the plan's entry 0 gains, at most where no replay
    shows it."""
    step_without_it_ns: int
    """The step that the plan's gains are of less ``cost_ns``: a lower bound, because other delays may hide behind this
    one."""
    likely_reason: str = ""
    """``shared_gpu``, ``lower_clocks`` or empty, as in ``Straggler``."""
    evidence: str = ""
    """What it did differently from its peers."""
    slow_with: tuple[int, ...] = ()
    """Ranks that are slow too: the delay disappears only once all of them are fixed."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank and those that are slow with it."""
        return tuple(sorted((self.rank, *self.slow_with)))

    @property
    def named(self) -> str:
        """``rank 2``, or ``ranks 1 and 2``."""
        numbers = [str(rank) for rank in self.ranks]
        return f"{plural(len(numbers), 'rank')} {join_words(numbers)}"


REMOVED = {
    "memory": "recompute and host copies",
    "communication": "communication",
    "compute_host.compute": "what keeps kernels from their peak",
    "compute_host.host": "host time",
    "straggler": "the delay of the slow rank",
}
"""What a counterfactual may be without, and how it reads after "without"."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """The step without something that holds it up, by replaying it without the profiler."""

    without: tuple[str, ...]
    """One or two of ``memory`` (recompute and host copies), ``communication``, ``compute_host.compute`` (kernels at
    the peak that can be reached), ``compute_host.host``; or ``straggler``."""
    step_ns: int
    saved_ns: int
    """By how much the step is shorter than the replayed one."""
    note: str = ""
    """What is not known, and stays in the step."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The wall that holds the run back, or an abstention with its reason."""

    wall: Wall | None
    """``memory``, ``communication`` or ``compute_host``; null when abstained."""
    sub_wall: SubWall | None
    """``compute`` or ``host`` for the third wall, null where it is both or another wall."""
    abstained: bool
    """Whether no wall is named."""
    reason: str
    """Why, in a sentence with the numbers."""
    step_ns: int | None
    """The representative step, which the verdict is about."""
    runner_up_wall: Wall | None
    runner_up_sub_wall: SubWall | None
    margin_fraction: float | None
    """(recoverable time of the wall - recoverable time of the runner-up) / step."""
    recoverable_ns: Mapping[str, int | None]
    """Upper bound of what removing a wall saves, by wall (``communication``) and half (``compute_host.host``)."""
    culprit: Culprit | None = None
    """The rank to fix before anything is tuned: the wall is then judged for the step without its delay. Null where no
    rank holds the run back: one that is late for little of the step is a finding."""
    replayed_step_ns: int | None = None
    """The step in a replay without the profiler (the log's, where one was given); null where replays are withheld."""
    counterfactuals: tuple[Counterfactual, ...] = ()
    """The walls decide by these where the step was replayed: the wall is the one whose removal saves most."""
    plan_remark: str = ""
    """Why the plan begins at another wall, or gains more than the largest wall; else empty."""
    no_replay_reason: str = ""
    """Why nothing was replayed, so that walls are measured times and there is no plan; else empty."""

    def names(self, wall: Wall, sub_wall: SubWall | None) -> bool:
        """Whether what changes ``wall`` changes the wall that holds the run back."""
        return self.wall is wall and self.sub_wall in (None, sub_wall)
