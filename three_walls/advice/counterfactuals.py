"""The step without a wall, by replaying it: what communication, the host, kernels and freed memory hold up.

A wall is what would go at best: communication takes no time, the host takes no time, kernels reach the peak that can be
reached, nothing is computed again or copied to the host.
"""

from __future__ import annotations

from itertools import combinations

from three_walls.advice import verdict_thresholds
from three_walls.advice.plan.replays import Replays, Transformations
from three_walls.advice.verdict_rows import REMOVED, Counterfactual
from three_walls.lib.fact import FactSheet
from three_walls.replay.transformation import FREE_HOST, NOTHING, Action, Selection, Transformation
from three_walls.tables.buckets import HOST_COPIES
from three_walls.tables.prediction_intervals import Levels

MEMORY, COMMUNICATION, COMPUTE, HOST, STRAGGLER = REMOVED


def heal(ranks: tuple[int, ...]) -> Transformation:
    """The ``ranks`` are as fast as their peers."""
    return Transformation(Action.HEAL, Selection(ranks=ranks), reason="its kernels and its host are as its peers'")


def replay_without_walls(replays: Replays, facts: FactSheet) -> tuple[Counterfactual, ...]:
    """The step without each wall, then without each two of them that both shorten it."""
    now_ns = replays.step().likely_ns
    removed, notes = _list_removals(replays, facts)

    def without(*walls: str) -> Counterfactual:
        changes = tuple(change for wall in walls for change in removed[wall])
        step_ns = replays.likely_ns(changes) if changes else now_ns
        return Counterfactual(walls, step_ns, now_ns - step_ns, notes.get(walls[0], "") if len(walls) == 1 else "")

    single = tuple(without(wall) for wall in removed)
    pairs = tuple(without(*pair) for pair in combinations([wall for wall in removed if removed[wall]], 2))
    return (*single, *pairs)


def _list_removals(replays: Replays, facts: FactSheet) -> tuple[dict[str, Transformations], dict[str, str]]:
    """What removes each wall, as far as it is in the step, and notes on what is not known."""
    removals: dict[str, Transformations] = {
        MEMORY: (
            Transformation(Action.SCALE, Selection(directions=("recompute",)), time=NOTHING, host=NOTHING),
            # The host still waits where it reads sizes back: that is no price of memory.
            Transformation(Action.SCALE, Selection(categories=HOST_COPIES), time=NOTHING),
        ),
        COMMUNICATION: (Transformation(Action.SCALE, Selection(categories=("communication",)), time=NOTHING),),
        COMPUTE: (Transformation(Action.SCALE, Selection(categories=("attention_unfused",)), time=NOTHING),),
        HOST: (FREE_HOST,),
    }
    notes: dict[str, str] = {}
    efficiency = facts.get("gemm_efficiency_fraction")
    reached = facts.number("gemm_efficiency_fraction")
    if reached is None:
        notes[COMPUTE] = (
            f"GEMMs keep their time, because {efficiency.label} is unknown: {efficiency.missing_reason or 'no number'}"
        )
    else:
        share = min(1.0, reached / verdict_thresholds.REACHABLE_GEMM_EFFICIENCY_FRACTION)
        gemms = Transformation(Action.SCALE, Selection(categories=("gemms",)), time=Levels(share, share, share))
        removals[COMPUTE] = (*removals[COMPUTE], gemms)
    effective = {
        wall: tuple(change for change in changes if not replays.predictor.explain(change))
        for wall, changes in removals.items()
    }
    return effective, notes
