"""The update of the weights and what is done around it: foreach kernels, an update on the host, casts, checkpoints."""

from __future__ import annotations

import re

import polars as pl

from three_walls.lib.declare import duration, fact, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.build_timeline import Timeline
from three_walls.step.find_steps import MODEL_WORK
from three_walls.step.intervals import DURATION, intersect
from three_walls.step.ownership import OWNER
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import GEMM_CATEGORIES, IDLE_BUCKETS

MINIMUM_OUTLIER_EXCESS_FRACTION = 0.05
"""Of the median step: a step that is longer by less is no outlier. Steps of one run differ by a few percent."""
CHECKPOINT_BYTES = 256 << 20
"""Copied to the host in one step and not in the others: from here on a step is taken to save a checkpoint. Norms,
losses and token counts are some kilobytes; the shard of a rank is gigabytes."""

_FOREACH = re.compile(r"(Pointwise|Ternary|Binary|Unary)Op\w{0,40}Functor")
_FOREACH_UPDATE = re.compile(r"(Pointwise|Ternary)Op\w{0,40}Functor")
"""``addcdiv`` and ``lerp``, which only the update of an optimizer calls."""
_GRID = ("name_id", "grid_x", "grid_y", "grid_z")


@duration("foreach optimizer time per step", share="foreach optimizer work")
def foreach_optimizer_ns(step: StepView) -> int:
    """Time per step of the optimizer's foreach kernels of PyTorch, where these update the weights; 0 where a fused
    optimizer does."""
    optimizer = step.kernels.filter(pl.col("category") == "optimizer").select(DURATION.alias("ns"), "name_id")
    texts = {number: step.trace.names.get(number, "") for number in optimizer["name_id"].drop_nulls().unique()}
    foreach = [number for number, text in texts.items() if _FOREACH.search(text)]
    if not any(_FOREACH_UPDATE.search(texts[number]) for number in foreach):
        return 0
    return int(optimizer.filter(pl.col("name_id").is_in(foreach))["ns"].sum())


@duration("GPU idle time of the update per step", share="idle time of the update")
def update_idle_ns(step: StepView) -> Measurement[int]:
    """Time per step in which the GPU is idle between the step's last GEMM or attention kernel and the last copy of the
    update from or to the host."""
    model_work = step.operations.filter(pl.col("category").is_in(list(MODEL_WORK)))["end_ns"].max()
    copies = step.started.filter(pl.col("kind") == "memcpy", pl.col("category").cast(pl.String).str.contains("d2h|h2d"))
    last_copy = copies["start_ns"].max()
    if not isinstance(model_work, int) or not isinstance(last_copy, int):
        return missing("no copy between GPU and host follows the model's work")
    idle = step.slices.filter(OWNER.is_in(IDLE_BUCKETS)).with_columns(
        pl.col("start_ns").clip(lower_bound=model_work), pl.col("end_ns").clip(upper_bound=last_copy)
    )
    return known(int(idle.select(DURATION.clip(lower_bound=0).sum()).item()))


@duration("quantization time per step", share="quantization work")
def quantize_ns(step: StepView) -> int:
    """Time per step that casts to FP8 and FP4, their scales and their transposes take."""
    return step.union_ns(("quantize",))


@duration("quantization time per step after the first micro-batch")
def repeated_quantize_ns(quantize_ns: int, num_microbatches: int) -> int:
    """Time per step that casts take in all micro-batches but the first. Weights are a part of what is cast there."""
    return quantize_ns - quantize_ns // max(1, num_microbatches)


@flag(
    "whether every micro-batch casts the same shapes",
    if_true="No cast runs in the first micro-batch alone: weights are cast again in each",
    if_false="Some casts run in the first micro-batch alone, as those of weights should",
)
def casts_repeat(step: StepView, num_microbatches: int) -> Measurement[bool]:
    """Whether no cast (by its kernel and grid) is launched in the first micro-batch of the step alone.

    Not the same as: A look at what is cast: a weight and an activation of the same shape are one.
    """
    quantize = step.kernels.filter(pl.col("category") == "quantize")
    gemms = step.kernels.filter(pl.col("category").is_in(list(GEMM_CATEGORIES)))["start_ns"].sort()
    if num_microbatches < 2:
        return missing("a step has one micro-batch")
    if quantize.is_empty() or gemms.is_empty():
        return missing("no kernel of the step casts to a lower precision")
    # The first micro-batch has one part in m of the GEMMs; the update at the end has casts of its own.
    first_end_ns = gemms[min(len(gemms) - 1, len(gemms) // num_microbatches)]
    last_ns = quantize.group_by(_GRID).agg(last_ns=pl.col("start_ns").max(), calls=pl.len())
    return known(last_ns.filter((pl.col("last_ns") <= first_end_ns) & (pl.col("calls") >= 2)).is_empty())


@fact("count", "the number of steps with a checkpoint")
def checkpoint_steps_count(timeline: Timeline, step: StepView) -> int:
    """Steps of the representative rank that copy much more to the host than its other steps, and take longer: as when a
    checkpoint is saved. Steps that the analysis leaves out count too."""
    steps = timeline.steps.filter(pl.col("rank_index") == step.rank_index).with_columns(length_ns=DURATION)
    copied = _count_copied(timeline.operations.filter(pl.col("rank_index") == step.rank_index), steps)
    usual_ns = steps["length_ns"].median()
    usual_bytes = copied["bytes"].median()
    assert isinstance(usual_ns, int | float) and isinstance(usual_bytes, int | float)
    return copied.filter(
        (pl.col("bytes") >= usual_bytes + CHECKPOINT_BYTES)
        & (pl.col("length_ns") >= usual_ns * (1 + MINIMUM_OUTLIER_EXCESS_FRACTION))
    ).height


def _count_copied(operations: Operations, steps: pl.DataFrame) -> pl.DataFrame:
    """``steps`` with the ``bytes`` that each copies to the host."""
    to_host = operations.filter(pl.col("category").cast(pl.String).str.starts_with("copy_d2h")).with_columns(
        pl.col("bytes").fill_null(0)
    )
    begun = to_host.with_columns(end_ns=pl.col("start_ns") + 1)
    sums = intersect(begun, steps, ["rank_index"], carry=["step"]).group_by("step").agg(pl.col("bytes").sum())
    return steps.join(sums, on="step", how="left").with_columns(pl.col("bytes").fill_null(0))
