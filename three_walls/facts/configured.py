"""What the trace shows of what the configuration asks for: which dispatcher runs, which fused kernels, which graphs."""

from __future__ import annotations

from three_walls.lib.declare import fact, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.build_timeline import Timeline
from three_walls.step.step_view import StepView
from three_walls.tables.kernel_names import shown_settings

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
    numbers = step.kernels["name_id"].drop_nulls().unique().to_list()
    names = [step.trace.names.get(number, "") for number in numbers]
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
