"""The table that every operation of a step gets: what it is part of (``label_operations.py``)."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from three_walls.step.step_tables import Operations

LABELS = pl.Schema(
    {
        "module": pl.String,  # MODULES; null where not known, as are all others
        "stack": pl.String,  # STACKS; null for the model's own layers and what lies outside of layers
        "part": pl.String,  # of the module: MOE_PARTS and the like
        "direction": pl.String,  # DIRECTIONS
        "pass": pl.Int64,  # through a layer, from 0 in each direction; null outside of layers
        "layer": pl.Int64,  # of the rank's layers, from 0
        "micro_batch": pl.Int64,  # of the step, from 0 in the order of execution
        "operator": pl.String,  # unfused work by the operators around the launch: ROPE, ROUTER_TOPK, loss, ...
        "fused_kernel": pl.Int64,  # number of the fused kernel that would take it over
        "operator_range": pl.Int64,  # index of the range by which it is part of a sequence of operators
    }
)

LabelledOperations = Annotated[Operations, LABELS]
"""What every operation of a step is, and of which part of the model."""
