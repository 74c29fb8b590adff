"""What the trace shows of what the configuration asks for: which dispatcher runs, which fused kernels, which graphs."""

from __future__ import annotations

import re

import polars as pl

from three_walls.facts.cuda_graphs import IS_NODE
from three_walls.facts.unfused_ops import NO_OPERATORS
from three_walls.layers.labels import LabelledOperations
from three_walls.layers.operator_sequences import is_operator
from three_walls.lib.declare import fact, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.build_timeline import Timeline
from three_walls.step.operators import Operators
from three_walls.step.step_view import StepView
from three_walls.tables.hardware import FP8
from three_walls.tables.kernel_names import precision_of_kernel, shown_settings
from three_walls.tables.model_parts import EXPERT_GEMM, LOSS, OUTSIDE, ROUTER, WGRAD_ACCUMULATION

MINIMUM_WEIGHT_BLOCKS = 256
"""Blocks of the kernel that adds the gradient of a matrix. That of a norm has at most 32 (16,384 channels in blocks of
512), that of a short convolution some 64."""

_FUSED_LOSS = re.compile("cross_entropy|online_softmax")
_COMPILED = re.compile(r"^triton_\w|nvfuser|CudaCodeGen", re.IGNORECASE)
_CASTS_OF_RECIPE = {
    "delayed": "amax_and_scale_update",
    "tensorwise": "compute_scale",
    "blockwise": "block_scaled",
    "mxfp8": "mxfp8",
}
"""Recipe of FP8 -> Transformer Engine's kernels that this recipe alone runs (common/recipe, common/transpose and
common/cast of release 2.20)."""
_CAST_TO_FP4 = re.compile("nvfp4|fp4_|e2m1", re.IGNORECASE)

_WHOLE_GRAPHS = "kernels inside CUDA graphs were not recorded (capture with --cuda-graph-trace=node)"


@flag(
    "whether a flex dispatcher runs",
    if_true="Kernels of an expert-parallel library dispatch the tokens",
    if_false="No kernel of an expert-parallel library (DeepEP, HybridEP, NCCL EP) runs in the step",
)
def flex_dispatcher_runs(step: StepView, cuda_graph_fraction: Measurement[float]) -> Measurement[bool]:
    """Whether kernels of a library for expert parallelism dispatch or combine tokens in the step."""
    runs = bool((step.started["category"] == "ep_dispatch_combine").any())
    return missing(_WHOLE_GRAPHS) if not runs and cuda_graph_fraction.value else known(runs)


@flag(
    "whether the capture records CUDA graphs",
    if_true="The capture records or instantiates CUDA graphs",
    if_false="The capture records no CUDA graph",
)
def graphs_are_recorded(timeline: Timeline) -> bool:
    """Whether some call of the capture begins to record a CUDA graph, or instantiates one."""
    records = timeline.api_calls.named(lambda name: "StreamBeginCapture" in name or "GraphInstantiate" in name)
    return records.height > 0


@fact("text", "the list of absent fusions")
def fusions_not_seen(step: StepView, cuda_graph_fraction: Measurement[float]) -> Measurement[str | None]:
    """The fusions that the configuration asks for and of which no kernel runs in the step, as settings; unset where
    there are none. Only those are looked for whose kernels have names of their own (tables/kernel-settings.yaml)."""
    asked = [row for row in shown_settings() if row.kernels and row.value is True and step.config.get(row.key) is True]
    names = _list_kernels(step)
    absent = [row.key for row in asked if not any(row.kernels and row.kernels.search(name) for name in names)]
    if absent and cuda_graph_fraction.value:
        return missing(_WHOLE_GRAPHS)
    return known(", ".join(absent) or None)


@flag(
    "whether fused kernels are configured",
    if_true="The configuration asks for fused kernels",
    if_false="The configuration asks for no fused kernel with a name of its own",
)
def fusions_are_configured(step: StepView) -> bool:
    """Whether the configuration asks for a fusion whose kernels have names of their own."""
    return any(row.kernels and row.value is True and step.config.get(row.key) is True for row in shown_settings())


@flag(
    "whether the attention backend is chosen automatically",
    if_true="Transformer Engine chooses the attention backend by itself",
    if_false="A setting asks for unfused attention, or the layers are not Transformer Engine's",
)
def attention_choice_is_automatic(step: StepView) -> bool:
    """Whether the layers are Transformer Engine's and no setting is known to ask for unfused attention.

    Not the same as: A setting that is recorded: attention_backend is automatic unless it is set.
    """
    config = step.config
    # Layers of Transformer Engine are known by their kernels where no setting states them.
    is_chosen_by_layer = config.get("transformer_impl") == "transformer_engine"
    switch = config.environment.get("NVTE_FUSED_ATTN")
    is_asked_for = config.get("attention_backend") in ("unfused", "local") or (
        switch is not None and str(switch.value) == "0"
    )
    return is_chosen_by_layer and not is_asked_for


@flag(
    "whether experts run as grouped GEMMs",
    if_true="The experts' GEMMs run as grouped kernels, or side by side on several streams",
    if_false="The experts' GEMMs run one after another on one stream",
)
def experts_run_grouped(labelled_step: LabelledOperations) -> Measurement[bool]:
    """Whether a grouped kernel computes the experts, or the streams over which a grouped layer spreads their GEMMs."""
    gemms = labelled_step.filter(pl.col("part") == EXPERT_GEMM)
    if gemms.is_empty():
        return missing("no GEMM of an expert was recognized")
    is_one_kernel = (gemms["category"].cast(pl.String) == "grouped_gemm").any()
    return known(bool(is_one_kernel) or gemms["stream"].n_unique() > 1)


@flag(
    "whether a CUDA graph launches the optimizer",
    if_true="CUDA graphs launch kernels of the optimizer",
    if_false="No kernel of the optimizer is launched by a CUDA graph",
)
def optimizer_runs_in_graph(step: StepView, cuda_graph_fraction: Measurement[float]) -> Measurement[bool]:
    """Whether some kernel of the optimizer was launched by a CUDA graph."""
    optimizer = step.kernels.filter(pl.col("category") == "optimizer")
    if optimizer.filter(IS_NODE).height:
        return known(True)
    if cuda_graph_fraction.value:
        return missing(_WHOLE_GRAPHS)
    return known(False) if optimizer.height else missing("no kernel of an optimizer runs in the step")


@flag(
    "whether the loss is fused",
    if_true="The cross entropy runs as fused or compiled kernels",
    if_false="The cross entropy runs as PyTorch's own pointwise kernels",
)
def loss_is_fused(
    step: StepView, labelled_step: LabelledOperations, cuda_graph_fraction: Measurement[float]
) -> Measurement[bool]:
    """Whether kernels of a fused cross entropy run, or the kernels inside the loss are compiled ones."""
    if any(map(_FUSED_LOSS.search, _list_kernels(step))):
        return known(True)
    loss = labelled_step.filter(pl.col("operator") == LOSS)["name"].drop_nulls().unique().to_list()
    if loss:
        return known(any(map(_COMPILED.search, loss)))
    if cuda_graph_fraction.value:
        return missing(_WHOLE_GRAPHS)
    return missing("no kernel of the loss is known: it runs on the last pipeline stage, inside ranges of operators")


@fact("count", "the number of separate weight gradient additions")
def separate_weight_additions_count(
    labelled_step: LabelledOperations, operators: Operators, cuda_graph_fraction: Measurement[float]
) -> Measurement[int]:
    """Kernels of the step that add the gradient of a layer's weight matrix to its buffer.

    Not the same as: All of the gradient accumulation: gradients of norms, routers and embeddings are added by kernels
    of their own with fusion too.
    """
    if not any(map(is_operator, operators.found)):
        return missing(NO_OPERATORS)
    blocks = pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z")
    count = labelled_step.filter(
        pl.col("operator") == WGRAD_ACCUMULATION,
        pl.col("module").is_not_null() & ~pl.col("module").is_in([OUTSIDE, ROUTER]),
        blocks >= MINIMUM_WEIGHT_BLOCKS,
    ).height
    return missing(_WHOLE_GRAPHS) if not count and cuda_graph_fraction.value else known(count)


@fact("text", "the low precision that is absent")
def low_precision_not_seen(step: StepView, cuda_graph_fraction: Measurement[float]) -> Measurement[str | None]:
    """FP8 or FP4 that the configuration asks for and to which no kernel of the step casts, or the FP8 recipe of which
    no cast runs; unset where all is there."""
    config, names = step.config, _list_kernels(step)
    recipe = str(config.get("fp8_recipe"))
    absent = [] if not config.get("fp4") or any(map(_CAST_TO_FP4.search, names)) else ["FP4"]
    if config.get("fp8"):
        casts = _CASTS_OF_RECIPE.get(recipe, "")
        if not (step.kernels["category"] == "quantize").any():
            absent += [] if any(precision_of_kernel(name, None) == FP8 for name in names) else ["FP8"]
        elif not any(re.search(casts, name) for name in names):
            absent.append(f"FP8 by the {recipe} recipe")
    return missing(_WHOLE_GRAPHS) if absent and cuda_graph_fraction.value else known(", ".join(absent) or None)


def _list_kernels(step: StepView) -> list[str]:
    """The names of the step's kernels."""
    numbers = step.kernels["name_id"].drop_nulls().unique().to_list()
    return [step.trace.names.get(number, "") for number in numbers]
