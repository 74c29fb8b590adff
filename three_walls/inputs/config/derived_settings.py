"""Settings that follow from others, as Megatron-LM works them out after reading its flags."""

from __future__ import annotations

from three_walls.inputs.config.collected import Settings
from three_walls.inputs.config.megatron_flags import MEGATRON_LM_DEFAULT
from three_walls.model.config import as_whole_number


def derive_settings(settings: Settings) -> None:
    """Replace unset and defaulted values that the launcher itself replaces."""
    _derive_experts(settings)
    _derive_graph_scope(settings)
    _follow(settings, "expert_tensor_parallel_size", "tensor_model_parallel_size")


def derive_megatron_settings(settings: Settings) -> None:
    """What only a complete Megatron-LM command line determines; call before :func:`derive_settings`."""
    _derive_widths(settings)
    _derive_sequence_parallel(settings)
    _derive_pipeline(settings)
    _derive_precision(settings)
    _derive_recompute(settings)
    if _get(settings, "add_bias_linear") is False:
        settings.derive("bias_gelu_fusion", False, "no bias in linear layers")


def _derive_experts(settings: Settings) -> None:
    if _whole(settings, "num_moe_experts") == 0:  # Megatron-LM's other way to say "dense"
        settings.give("num_moe_experts", None, settings.values["num_moe_experts"].source)
    if _whole(settings, "num_moe_experts") is not None:
        _follow(settings, "moe_ffn_hidden_size", "ffn_hidden_size")


def _derive_graph_scope(settings: Settings) -> None:
    given = settings.values.get("cuda_graph_modules")
    scope = settings.values.get("cuda_graph_scope")
    if given is not None and given.value and (scope is None or not scope.value):
        settings.derive("cuda_graph_scope", given.value, "cuda_graph_modules")


def _derive_widths(settings: Settings) -> None:
    hidden, heads = _whole(settings, "hidden_size"), _whole(settings, "num_attention_heads")
    if hidden is not None and _is_unset(settings, "ffn_hidden_size"):
        # A gated unit has two input matrices: 2/3 of the width keeps the number of parameters, in whole tiles of 64.
        gated = bool(_get(settings, "swiglu"))
        settings.derive("ffn_hidden_size", hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden, "hidden_size")
    if hidden is not None and heads and _is_unset(settings, "kv_channels"):
        settings.derive("kv_channels", hidden // heads, "hidden_size / num_attention_heads")
    if heads is not None and _get(settings, "group_query_attention") is False:
        # Given or not, the number of groups does not count then.
        settings.give("num_query_groups", heads, "derived: num_attention_heads (no --group-query-attention)")


def _derive_sequence_parallel(settings: Settings) -> None:
    if _whole(settings, "tensor_model_parallel_size") == 1 and _get(settings, "sequence_parallel") is True:
        settings.derive("sequence_parallel", False, "tensor_model_parallel_size")


def _derive_pipeline(settings: Settings) -> None:
    if not _is_unset(settings, "pipeline_model_parallel_layout"):
        # The layout string determines the number of virtual stages; counting it is not worth a parser here.
        if "virtual_pipeline_model_parallel_size" not in settings.settled:
            settings.values.pop("virtual_pipeline_model_parallel_size", None)
        return
    per_stage, layers = _whole(settings, "num_layers_per_virtual_pipeline_stage"), _whole(settings, "num_layers")
    stages = _whole(settings, "pipeline_model_parallel_size")
    if per_stage and layers is not None and stages:
        size = layers // stages // per_stage
        settings.derive("virtual_pipeline_model_parallel_size", size, "num_layers_per_virtual_pipeline_stage")
    if _whole(settings, "virtual_pipeline_model_parallel_size") == 1:
        settings.derive("virtual_pipeline_model_parallel_size", None, "one stage is none")
    if _is_unset(settings, "virtual_pipeline_model_parallel_size"):
        for name in ("overlap_p2p_comm", "align_param_gather"):
            settings.derive(name, False, "no interleaved pipeline stages")


def _derive_precision(settings: Settings) -> None:
    source = settings.values.get("grad_reduce_in_fp32")
    given = source is not None and source.source != MEGATRON_LM_DEFAULT
    if not given and _get(settings, "bf16") is True and _get(settings, "main_grads_dtype") == "fp32":
        settings.derive("grad_reduce_in_fp32", True, "bf16")


def _derive_recompute(settings: Settings) -> None:
    if _get(settings, "recompute_granularity") == "selective" and _is_unset(settings, "recompute_modules"):
        settings.derive("recompute_modules", ("core_attn",), "recompute_granularity")


def _follow(settings: Settings, name: str, other: str) -> None:
    """Give an unset ``name`` the value of ``other``."""
    if name in settings.values and _is_unset(settings, name) and _get(settings, other) is not None:
        settings.derive(name, settings.values[other].value, other)


def _get(settings: Settings, name: str) -> object:
    found = settings.values.get(name)
    return None if found is None else found.value


def _is_unset(settings: Settings, name: str) -> bool:
    found = settings.values.get(name)
    return found is None or (found.value is None and not found.is_withheld)


def _whole(settings: Settings, name: str) -> int | None:
    return as_whole_number(_get(settings, name))
