"""Bytes of activations that one GPU keeps for the backward pass, and the working set at the peak.

Per token of a layer, in elements of two bytes (after Korthikanti et al., arXiv:2205.05198, section 4, with the terms of
experts, grouped queries and gated units): the input and output of both norms; queries, keys, values and the output of
attention; what the MLP's two GEMMs read and the tensors between them. Unfused attention keeps its scores too (once:
Megatron keeps the probabilities in bf16, dropout is taken to be off) and keys and values repeated for every query head.

The working set at the peak is the largest of: the backward pass of attention (unfused: four matrices of the scores'
size, one of them Megatron's permanent buffer, while the last layer's MLP is freed already), that of the last layer's
experts, and the loss (logits in bf16, and twice in fp32). The four matrices are an observation: with them the estimate
is within 3% of the peaks that Megatron Core 0.16.1 logged for sixteen configurations (docs/decisions/0009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from three_walls.lib.measurement import GIVE_CONFIG, Measurement, known, missing
from three_walls.megatron.model_shape import ModelShape
from three_walls.megatron.parallel_layout import CompleteLayout
from three_walls.megatron.settings.run_config import RunConfig

BYTES = 2
UNFUSED_WORKING_MATRICES = 4
LOSS_BYTES_PER_LOGIT = 2 + 4 + 4
FUSED_BACKWARD_BYTES = 6
"""Per element of queries, keys and values: a gradient in bf16, and one accumulated in fp32."""

_COUNTED_MODULES = ("core_attn", "moe_act", "layernorm", "moe", "mlp", "shared_experts", "mla_up_proj")
_NOT_COUNTED = (
    "fp8",
    "fp4",
    "moe_expert_capacity_factor",
    "cpu_offloading",
    "fine_grained_activation_offloading",
    "moe_paged_stash",
    "use_megatron_fsdp",
    "use_torch_fsdp2",
)


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Bytes that one layer keeps for one micro-batch, by what recompute can free."""

    layer_input: int
    norms: int
    """Outputs of the norms, and the input of the second."""
    attention: int
    """Inputs and outputs of attention's GEMMs, without scores."""
    scores: int
    """0 where attention is fused."""
    mlp: int
    """What the MLP (experts) keeps in addition to its input."""

    @property
    def total(self) -> int:
        return self.layer_input + self.norms + self.attention + self.scores + self.mlp


def is_attention_unfused(config: RunConfig) -> bool:
    """Whether attention runs as two GEMMs with a softmax between: asked for, or the local implementation."""
    return config.get("attention_backend") in ("unfused", "local") or config.get("transformer_impl") == "local"


def estimate_activations(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, layers: Sequence[int], stage: int
) -> Measurement[int]:
    """Peak bytes of activations with their working set on a GPU of ``stage``; missing where they are not modelled."""
    reason = _why_not_counted(config)
    if reason:
        return missing(reason)
    kept_layers = [keep_after_recompute(shape, layout, config, layer) for layer in layers]
    full_layers = [keep_in_full(shape, layout, config, layer) for layer in layers]
    if stage == layout.pipeline - 1:
        copies = shape.prediction_layers
        kept_layers += [keep_after_recompute(shape, layout, config, shape.layers - 1)] * copies
        full_layers += [keep_in_full(shape, layout, config, shape.layers - 1)] * copies
    batches = _layers_in_flight(layout, len(layers), stage) / len(layers)
    stored = round(batches * _stored(kept_layers, full_layers, config, layout))
    replayed = _replayed_at_once(kept_layers, full_layers, config)
    last = full_layers[-1]
    overlap = 0
    if config.get("overlap_moe_expert_parallel_comm") is True and layout.microbatches > 1:
        # The next micro-batch runs forward while this one runs back: a layer more is kept, and its MLP is not freed.
        overlap = kept_layers[-1].total + last.mlp
    return known(stored + replayed + overlap + _working_set(shape, layout, config, last, stage))


def keep_in_full(shape: ModelShape, layout: CompleteLayout, config: RunConfig, layer: int) -> LayerActivations:
    """What ``layer`` keeps for one micro-batch without recompute."""
    tokens = _tokens(shape, layout, config)
    whole = BYTES * tokens * shape.hidden // (layout.tensor if config.get("sequence_parallel") is True else 1)
    unfused = is_attention_unfused(config)
    keys_and_values = shape.query + shape.context if unfused else shape.key + shape.value
    attention = BYTES * tokens * (shape.query + keys_and_values + shape.context) // layout.tensor
    if not unfused:
        attention += 4 * tokens * shape.heads // layout.tensor  # the softmax's sums, in fp32
    return LayerActivations(
        layer_input=whole,
        norms=3 * whole,
        attention=attention,
        scores=_scores(shape, layout, config) if unfused else 0,
        mlp=_mlp(shape, layout, config, layer),
    )


def keep_after_recompute(shape: ModelShape, layout: CompleteLayout, config: RunConfig, layer: int) -> LayerActivations:
    """The same under selective recompute: outputs of its modules are computed again instead of kept."""
    full = keep_in_full(shape, layout, config, layer)
    if config.get("recompute_granularity") != "selective":
        return full
    modules = config.get("recompute_modules")
    named = modules if isinstance(modules, tuple) else ("core_attn",)
    tokens = _tokens(shape, layout, config)
    attention, scores = full.attention, full.scores
    if "core_attn" in named:
        # Its inputs stay: queries, keys and values before they are repeated.
        attention = BYTES * tokens * (shape.query + shape.key + shape.value + shape.context) // layout.tensor
        scores = 0
    if "mla_up_proj" in named and shape.latent:
        # What they are expanded from stays (mcore:megatron/core/transformer/multi_latent_attention.py:838-843).
        ranks = (shape.latent.query_rank or 0) + shape.latent.key_value_rank + shape.latent.rotary
        attention -= BYTES * tokens * (shape.query + shape.key + shape.value) // layout.tensor
        attention += BYTES * tokens * ranks // (layout.tensor if config.get("sequence_parallel") is True else 1)
    return LayerActivations(
        layer_input=full.layer_input,
        norms=full.norms // 3 if "layernorm" in named else full.norms,
        attention=attention,
        scores=scores,
        mlp=_mlp(shape, layout, config, layer, named),
    )


def _mlp(shape: ModelShape, layout: CompleteLayout, config: RunConfig, layer: int, free: Sequence[object] = ()) -> int:
    tokens = _tokens(shape, layout, config)
    entering = 2 if shape.is_gated else 1
    if layer not in shape.moe_layers:
        return 0 if "mlp" in free else BYTES * tokens * (entering + 1) * shape.dense_ffn // layout.tensor
    if "moe" in free:
        return 0
    # Each expert tensor-parallel rank holds the tokens of all ranks of its group.
    routed = tokens * shape.top_k * layout.expert_tensor // layout.tensor
    between = entering + (0 if "moe_act" in free else 1)
    experts = BYTES * routed * (shape.expert_hidden + between * shape.expert_ffn // layout.expert_tensor)
    shared = 0 if "shared_experts" in free else BYTES * tokens * (entering + 1) * shape.shared_ffn // layout.tensor
    return experts + shared


def _stored(
    after_recompute: Sequence[LayerActivations],
    full: Sequence[LayerActivations],
    config: RunConfig,
    layout: CompleteLayout,
) -> int:
    """Bytes that a stage's layers keep for one micro-batch."""
    if config.get("recompute_granularity") != "full":
        return sum(layer.total for layer in after_recompute)
    group = config.whole_number("recompute_num_layers") or 1
    if config.get("recompute_method") == "block":
        per_chunk = len(full) // layout.virtual or 1
        checkpointed = [place % per_chunk < group for place in range(len(full))]
        return sum(layer.layer_input if again else layer.total for layer, again in zip(full, checkpointed, strict=True))
    return sum(layer.layer_input for layer in full[::group])


def _replayed_at_once(
    after_recompute: Sequence[LayerActivations], full: Sequence[LayerActivations], config: RunConfig
) -> int:
    """What comes back while the last layer (or group of layers) is replayed."""
    if config.get("recompute_granularity") == "full":
        is_uniform = config.get("recompute_method") != "block"
        group = (config.whole_number("recompute_num_layers") or 1) if is_uniform else 1
        return sum(layer.total for layer in full[-group:])
    return full[-1].attention - after_recompute[-1].attention + full[-1].scores - after_recompute[-1].scores


def _working_set(
    shape: ModelShape, layout: CompleteLayout, config: RunConfig, last: LayerActivations, stage: int
) -> int:
    tokens = _tokens(shape, layout, config)
    buffer = last.scores
    attention = UNFUSED_WORKING_MATRICES * last.scores - last.mlp
    if not last.scores:
        channels = shape.query + shape.key + shape.value
        attention = FUSED_BACKWARD_BYTES * tokens * channels // layout.tensor - last.mlp
    experts = buffer + last.mlp  # their gradients are as large as they are
    loss = 0
    if stage == layout.pipeline - 1:
        loss = buffer + LOSS_BYTES_PER_LOGIT * tokens * shape.vocabulary // layout.tensor
    return max(attention, experts, loss)


def _layers_in_flight(layout: CompleteLayout, layers: int, stage: int) -> float:
    """Layers times micro-batches that wait for their backward pass on ``stage``, at most.

    One forward, one backward: stage r of p waits for p - r micro-batches; with v chunks per stage, for
    2(p - r - 1) + (v - 1)p + 1 chunks (megatron/core/pipeline_parallel/schedules.py).
    """
    if layout.virtual == 1:
        return layers * min(layout.microbatches, layout.pipeline - stage)
    chunks = 2 * (layout.pipeline - stage - 1) + (layout.virtual - 1) * layout.pipeline + 1
    return min(chunks, layout.microbatches * layout.virtual) * layers / layout.virtual


def _tokens(shape: ModelShape, layout: CompleteLayout, config: RunConfig) -> int:
    """Tokens of one micro-batch on one GPU, before tensor parallelism."""
    return shape.sequence * (config.whole_number("micro_batch_size") or 1) // layout.context


def _scores(shape: ModelShape, layout: CompleteLayout, config: RunConfig) -> int:
    return BYTES * _tokens(shape, layout, config) * shape.sequence * shape.heads // layout.tensor


def _why_not_counted(config: RunConfig) -> str | None:
    for key in _NOT_COUNTED:
        if config.get(key) not in (None, False):
            return f"activations with {key} are not counted"
    precision = str(config.get("mixed_precision") or "")
    if not (config.get("bf16") is True or config.get("fp16") is True or precision.startswith(("bf16", "fp16"))):
        return f"the config does not state that activations are bf16 or fp16 {GIVE_CONFIG}"
    modules = config.get("recompute_modules")
    if config.get("recompute_granularity") == "selective" and isinstance(modules, tuple):
        unknown = sorted(str(name) for name in modules if name not in _COUNTED_MODULES)
        if unknown:
            return f"recompute of {', '.join(unknown)} is not counted"
    return None
