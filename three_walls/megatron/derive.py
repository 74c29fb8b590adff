"""Settings that follow from others: for the settings of a run as for those that overrides give it.

A setting has a value, is unset (None), or is not known; what follows from one that is not known is not known either.
A name without a section is a field of the model. Sources: ``validate_args`` in megatron/training/arguments.py,
``TransformerConfig.__post_init__`` of Megatron Core 0.16 to 0.20, ``TransformerConfig.finalize`` of Bridge 0.3 to 0.6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from three_walls.lib.expressions import Truth
from three_walls.megatron.pipeline_layout import count_virtual_stages

UNKNOWN = Truth.UNKNOWN
_TENSOR, _EXPERT = "tensor_model_parallel_size", "expert_model_parallel_size"
_STAGES, _VIRTUAL = "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
_LAYOUT = "pipeline_model_parallel_layout"


class UnknownSettingError(Exception):
    """What is asked for depends on a setting that is not known."""


class KnownSettings:
    """Settings, as far as they are known, to which those that follow from others are added."""

    def __init__(self, values: dict[str, Any], fixed: Collection[str] = (), model: str = "") -> None:
        """``values``: by name, that of a field of the model after ``model``; ``fixed`` ones stay what they are."""
        self.values, self._fixed, self._model = values, fixed, model
        self.reasons: dict[str, str] = {}
        """What each derived setting follows from."""

    def look_up(self, name: str) -> Any:
        """The value; None where it is unset; UNKNOWN."""
        return self.values.get(name if "." in name else self._model + name, UNKNOWN)

    def put(self, name: str, value: Any, reason: str = "") -> None:
        """Sets what follows; UNKNOWN: what the setting becomes is not known."""
        if name in self._fixed or self.look_up(name) == value:
            return
        path = name if "." in name else self._model + name
        self.reasons[name] = reason
        if value is UNKNOWN:
            self.values.pop(path, None)
        else:
            self.values[path] = value

    def optional(self, name: str, default: Any = None) -> Any:
        """The value, or ``default`` where it is not known."""
        value = self.look_up(name)
        return default if value is UNKNOWN else value

    def get(self, name: str) -> Any:
        """The value; None where it is unset. Raises UnknownSettingError where it is not known."""
        value = self.look_up(name)
        if value is UNKNOWN:
            raise UnknownSettingError(name)
        return value

    def fill(self, name: str, reason: str, find: Callable[[], Any] | None = None) -> None:
        """Gives ``name`` a value where it is unset: that of the setting ``reason``, or what ``find`` gives."""
        if self.look_up(name) is not None:
            return
        try:
            value = self.get(reason) if find is None else find()
        except (UnknownSettingError, TypeError, ZeroDivisionError):  # of a size that is unset, or no size
            value = UNKNOWN
        self.put(name, value, reason)


def derive_megatron_lm(settings: KnownSettings) -> None:
    """What Megatron-LM makes of its flags."""
    without = "num_attention_heads (no --group-query-attention)"
    settings.fill("num_query_groups", without, lambda: settings.get("num_attention_heads"))
    settings.fill("ffn_hidden_size", "hidden_size", lambda: _gated_width(settings))
    if settings.optional("sequence_parallel") and settings.optional(_TENSOR) == 1:
        settings.put("sequence_parallel", False, _TENSOR)
    settings.fill(_VIRTUAL, _LAYOUT, lambda: _virtual_stages_of_layout(settings))
    settings.fill(_VIRTUAL, "num_layers_per_virtual_pipeline_stage", lambda: _virtual_stages_of_layers(settings))
    if settings.optional(_VIRTUAL) == 1:
        settings.put(_VIRTUAL, None, "one stage is none")
    if settings.look_up(_VIRTUAL) is None:
        settings.put("overlap_p2p_comm", False, "no interleaved pipeline stages")
        settings.put("align_param_gather", False, "no interleaved pipeline stages")
    if settings.optional("add_bias_linear") is False:
        settings.put("bias_gelu_fusion", False, "no bias in linear layers")
    derive_core(settings)


def derive_bridge(settings: KnownSettings, release: tuple[int, int] | None) -> None:
    """What Megatron-Bridge makes of its model; ``release``: None where it is not known."""
    settings.fill("pipeline_dtype", "params_dtype")
    turns_off = release is not None and release >= (0, 4)
    if turns_off and settings.optional("sequence_parallel") and settings.optional(_TENSOR, 2) <= 1:
        settings.put("sequence_parallel", False, _TENSOR)
    settings.fill("expert_tensor_parallel_size", _EXPERT, lambda: _expert_tensor_size(settings, release))
    derive_core(settings)


def derive_core(settings: KnownSettings) -> None:
    """What Megatron Core makes of a model, after either launcher."""
    get = settings.get
    settings.fill("expert_tensor_parallel_size", _TENSOR)
    settings.fill("ffn_hidden_size", "hidden_size", lambda: 4 * get("hidden_size"))
    shape = "hidden_size / num_attention_heads"
    settings.fill("kv_channels", shape, lambda: get("hidden_size") // get("num_attention_heads"))
    settings.fill("num_query_groups", "num_attention_heads")
    if settings.optional("num_moe_experts") is not None:
        settings.fill("moe_ffn_hidden_size", "ffn_hidden_size")
    if _recomputes_moe(settings) and settings.look_up("recompute_granularity") is not UNKNOWN:
        settings.put("recompute_granularity", "selective", "moe_layer_recompute")
    is_selective = settings.optional("recompute_granularity") == "selective"
    if is_selective and settings.look_up("recompute_modules") is not UNKNOWN:
        settings.put("recompute_modules", list_recomputed_modules(settings), "recompute_granularity")
    settings.fill(_VIRTUAL, _LAYOUT, lambda: _virtual_stages_of_layout(settings))


def list_recomputed_modules(settings: KnownSettings) -> tuple[Any, ...]:
    """The modules that selective recompute runs again."""
    modules = settings.get("recompute_modules")
    modules = ("core_attn",) if modules is None else modules
    return (*modules, "moe") if _recomputes_moe(settings) and "moe" not in modules else modules


def count_split_layers(settings: KnownSettings) -> Any:
    """The layers that are divided over pipeline stages, with the embedding and the loss where they count as one."""
    counted = sum(bool(settings.optional(f"account_for_{part}_in_pipeline_split")) for part in ("embedding", "loss"))
    return settings.get("num_layers") + counted if counted else settings.get("num_layers")


def overlaps_tensor_parallelism(settings: KnownSettings) -> bool:
    """Whether Bridge keeps the overlap of tensor parallelism that a CommOverlapConfig asks for.

    Raises UnknownSettingError where that is not known. Source: ``_get_model_comm_overlap_cfgs`` in
    megatron/bridge/training/comm_overlap.py of Bridge 0.3.1 to 0.6.2.
    """
    if settings.optional(_TENSOR, 2) < 2 or not settings.optional("sequence_parallel", True):
        return False
    return all(settings.get(name) for name in (_TENSOR, "sequence_parallel"))


def _recomputes_moe(settings: KnownSettings) -> bool:
    """Whether the older flag adds the MoE layer to what is recomputed; full recompute refuses it."""
    return bool(settings.optional("moe_layer_recompute")) and settings.optional("recompute_granularity") != "full"


def _gated_width(settings: KnownSettings) -> int | None:
    """A gated unit has two input matrices: 2/3 of the width keeps the number of parameters, in whole tiles of 64."""
    return settings.get("hidden_size") * 8 // 3 // 64 * 64 if settings.get("swiglu") else None


def _expert_tensor_size(settings: KnownSettings, release: tuple[int, int] | None) -> int | None:
    """1 from 0.6 on where experts are parallel; else that of Megatron Core."""
    is_older = release is not None and release < (0, 6)
    if is_older or settings.optional(_TENSOR) == 1 or settings.get(_EXPERT) <= 1:
        return None
    if release is None:
        raise UnknownSettingError("bridge_version")
    return 1


def _virtual_stages_of_layout(settings: KnownSettings) -> int | None:
    layout = settings.get(_LAYOUT)
    try:
        stages = 1 if layout is None else count_virtual_stages(layout, settings.get(_STAGES))
    except ValueError:  # a constraint reports it
        return None
    return stages if stages > 1 else None


def _virtual_stages_of_layers(settings: KnownSettings) -> Any:
    per_stage = settings.get("num_layers_per_virtual_pipeline_stage")
    return count_split_layers(settings) // settings.get(_STAGES) // per_stage if per_stage else None
