"""What PyTorch's operators tell of the representative step: its products by shape, its unfused work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from three_walls.attribution.attribution import Attribution
from three_walls.facts.gemm_efficiency import precision_of
from three_walls.facts.gemm_shapes import NO_SIZES, tabulate_gemms
from three_walls.facts.model_shape import read_model_shape
from three_walls.facts.parallel_sizes import read_parallel_sizes
from three_walls.facts.representative import Representative
from three_walls.facts.unfused_ops import measure_unfused_ops
from three_walls.facts.weight_roles import NO_WEIGHTS, Weights, name_weights
from three_walls.inputs.nsys.identity import Rank
from three_walls.inputs.nsys.reader import Trace
from three_walls.inputs.nsys.tables import read_ranges_between
from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.model.report import GemmShape
from three_walls.tables.hardware import GpuModel
from three_walls.tables.torch_operators import torch_operators
from three_walls.timeline.operators import Operators, nest_operators
from three_walls.timeline.timeline import Timeline

Known = tuple[FactValue, str | None]


@dataclass(frozen=True, slots=True)
class OperatorDetails:
    """``facts``: those of the glossary, each with its reason where missing."""

    shapes: tuple[GemmShape, ...] = ()
    facts: Mapping[str, Known] = field(default_factory=dict)


def measure_operators(
    trace: Trace,
    rank: Rank,
    timeline: Timeline,
    attribution: Attribution,
    representative: Representative,
    config: RunConfig,
    gpu: GpuModel | None,
) -> OperatorDetails:
    """``trace`` and ``rank``: those of the chosen step. Its ranges are read from the file again.

    Raises InputError where the file cannot be read any more.
    """
    is_mine = (pl.col("rank_index") == representative.rank_index) & (pl.col("step") == representative.step)
    start, end = attribution.steps.filter(is_mine).select("start_ns", "end_ns").row(0)
    operations = timeline.operations.filter(
        (pl.col("rank_index") == representative.rank_index) & (pl.col("start_ns") < end) & (pl.col("end_ns") > start)
    )
    operators = _read_operators(trace, rank, operations)
    precision, _ = precision_of(config)
    shapes, known = tabulate_gemms(
        operations, operators, trace.names, _name_weights(config), gpu, precision, _may_gather_tokens(config)
    )
    slices = attribution.slices.filter(is_mine)
    unfused = measure_unfused_ops(operations, slices, operators, torch_operators(), config, (int(start), int(end)))
    share: Known = (known, None) if known else (None, NO_SIZES)
    return OperatorDetails(shapes, {**unfused, "gemm_shapes_known_fraction": share})


def _read_operators(trace: Trace, rank: Rank, operations: pl.DataFrame) -> Operators:
    first, last = operations["launch_start_ns"].min(), operations["launch_start_ns"].max()
    if not isinstance(first, int) or not isinstance(last, int):
        return nest_operators(trace.ranges.clear())
    return nest_operators(read_ranges_between(trace.path, rank.process, first, last))


def _name_weights(config: RunConfig) -> Weights:
    """Names of the weights that the config gives the sizes of; none where it does not."""
    shape, _ = read_model_shape(config)
    sizes, _ = read_parallel_sizes(config)
    if shape is None or sizes is None:
        return NO_WEIGHTS
    batch = config.whole_number("micro_batch_size")
    tokens = shape.sequence * batch // sizes.context if batch else None
    return name_weights(shape, sizes.tensor, sizes.expert_tensor, tokens)


def _may_gather_tokens(config: RunConfig) -> bool:
    """Whether linear layers may gather the tokens that sequence parallelism spread."""
    tensor = config.size("tensor_model_parallel_size")
    return tensor != 1 and config.get("sequence_parallel") is not False
