"""Which step stands for a rank, and which rank's step stands for the run."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.timeline.steps import median_steps

STEP = ("rank_index", "step")


@dataclass(frozen=True, slots=True)
class Representative:
    """The step that the run's facts are taken from. ``why`` says in words which it is and why that one."""

    rank_index: int
    step: int
    step_ns: int
    why: str


def choose_representative(attribution: Attribution, rank_of: dict[int, int]) -> Representative | None:
    """The median step of the rank that waited least for its peers; None without a kept step.

    Ranks advance in lockstep: the one that waits least is the one the others wait for, so its step shows what
    the run is held back by. ``rank_of`` maps track to global rank (used in ``why`` and to break ties).
    """
    medians = median_steps(attribution.steps)
    if not medians:
        return None
    waits = {rank_index: _waited_ns(attribution, rank_index, step) for rank_index, step in medians.items()}
    rank_index = min(medians, key=lambda one: (waits[one], rank_of[one], one))
    step = medians[rank_index]
    length = attribution.steps.filter((pl.col("rank_index") == rank_index) & (pl.col("step") == step)).select(
        pl.col("end_ns") - pl.col("start_ns")
    )
    among = "the only rank captured" if len(medians) == 1 else f"it waited least for peers of {len(medians)} ranks"
    return Representative(
        rank_index=rank_index,
        step=step,
        step_ns=int(length.item()),
        why=f"rank {rank_of[rank_index]}, step {step}: its median step; {among}",
    )


def _waited_ns(attribution: Attribution, rank_index: int, step: int) -> int:
    mine = (pl.col("rank_index") == rank_index) & (pl.col("step") == step)
    exposed = attribution.exposure.filter(mine)["exposed_ns"].sum()
    transferred = attribution.transfer.filter(mine)["transfer_exposed_ns"].sum()
    return int(exposed) - int(transferred)
