"""The model's sizes by the config, from which operations and memory are counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from three_walls.lib.measurement import Measurement, known, known_or_missing, missing, unstated
from three_walls.megatron.settings.run_config import RunConfig

DEFAULT_VOCABULARY_MULTIPLE = 128
"""``make_vocab_size_divisible_by`` of Megatron-LM and Megatron-Bridge."""

_PATTERN_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
_MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Ranks and head sizes of multi-latent attention (DeepSeek)."""

    query_rank: int | None
    """None: queries are projected in one step."""
    key_value_rank: int
    head: int
    """Query and key channels per head without rotary ones."""
    rotary: int


class _Attention(NamedTuple):
    """Fields of ModelShape."""

    query: int
    key: int
    value: int
    context: int
    latent: LatentAttention | None = None


class _Mlp(NamedTuple):
    """Fields of ModelShape."""

    moe_layers: frozenset[int]
    dense_ffn: int
    experts: int
    top_k: int
    expert_ffn: int
    expert_hidden: int
    shared_ffn: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in elements. ``query``, ``key`` and ``value``: channels of all heads (groups) together."""

    layers: int
    hidden: int
    sequence: int
    vocabulary: int
    """Rows of the embedding, padded."""
    heads: int
    query: int
    key: int
    value: int
    context: int
    """Channels that attention puts out: value channels of all query heads."""
    latent: LatentAttention | None
    moe_layers: frozenset[int]
    """Numbers (from 0) of the layers whose MLP is made of experts."""
    dense_ffn: int
    experts: int
    top_k: int
    expert_ffn: int
    expert_hidden: int
    """Width of what experts read and write: hidden, or the latent size."""
    shared_ffn: int
    is_gated: bool
    prediction_layers: int
    """Layers of multi-token prediction."""
    is_tied: bool | None
    """Embedding and output layer share their weights; None where the config does not state it."""

    @property
    def ffn_matrices(self) -> int:
        """Matrices of an MLP in units of hidden x ffn: a gated unit has two on its input side."""
        return 3 if self.is_gated else 2

    @property
    def last_layer_is_moe(self) -> bool:
        """What the layers of multi-token prediction copy."""
        return self.layers - 1 in self.moe_layers


def read_model_shape(config: RunConfig) -> Measurement[ModelShape]:
    """The shape; missing where a setting is not known or not understood."""
    sizes = {key: config.whole_number(key) for key in ("num_layers", "hidden_size", "num_attention_heads")}
    sizes["seq_length"] = config.whole_number("seq_length")
    unknown = sorted(key for key, value in sizes.items() if not value)
    is_gated = _is_gated(config)
    unknown += ["num_moe_experts"] if not config.knows("num_moe_experts") else []
    unknown += ["swiglu"] if is_gated is None else []
    if unknown:
        return unstated(*unknown)
    for key in ("experimental_attention_variant", "hybrid_override_pattern"):
        if config.get(key):
            return missing(f"models with {key} are not counted")
    vocabulary = padded_vocabulary(config)
    if vocabulary.value is None:
        return missing(str(vocabulary.missing_reason))
    layers, hidden, heads = (sizes[key] or 0 for key in ("num_layers", "hidden_size", "num_attention_heads"))
    read_attention, read_mlp = _read_attention(config, hidden, heads), _read_mlp(config, layers, hidden)
    attention, mlp = read_attention.value, read_mlp.value
    if attention is None or mlp is None:
        return missing(str(read_attention.missing_reason or read_mlp.missing_reason))
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        sequence=sizes["seq_length"] or 0,
        vocabulary=vocabulary.value,
        heads=heads,
        **attention._asdict(),
        **mlp._asdict(),
        is_gated=is_gated is True,
        prediction_layers=config.whole_number("mtp_num_layers") or 0,
        is_tied=_is_tied(config),
    )
    return known(shape)


def padded_vocabulary(config: RunConfig) -> Measurement[int]:
    """Rows of the embedding: the vocabulary, padded to a multiple of the tensor-parallel size x 128 (by default).

    Source: ``_vocab_size_with_padding`` in megatron/training/tokenizer/tokenizer.py. A NullTokenizer adds one token.
    """
    padded = config.whole_number("padded_vocab_size")
    if padded:
        return known(padded)
    size = config.whole_number("vocab_size")
    tensor = config.whole_number("tensor_model_parallel_size")
    if not size or not tensor:
        return unstated("vocab_size" if not size else "tensor_model_parallel_size")
    if config.get("tokenizer_type") == "NullTokenizer":
        size += 1
    multiple = (config.whole_number("make_vocab_size_divisible_by") or DEFAULT_VOCABULARY_MULTIPLE) * tensor
    return known(-(-size // multiple) * multiple)


def read_moe_pattern(value: object, layers: int) -> frozenset[int] | None:
    """MoE layers of ``moe_layer_freq``: N (every N-th from the first), a list of 0 and 1, or ``([0]*3+[1]*58)``."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return frozenset(range(0, layers, value))
    flags: list[object] = list(value) if isinstance(value, tuple) else []
    if isinstance(value, str):
        flags = list(_read_pattern_text(value))
    if len(flags) != layers or any(flag not in (0, 1) for flag in flags):
        return None
    return frozenset(number for number, flag in enumerate(flags) if flag)


def read_hybrid_layers(config: RunConfig) -> str:
    """The layers of a hybrid model, a letter each: what mixes tokens, E for experts, - for an MLP; empty for others.

    Layers of multi-token prediction follow a slash, and a bar begins a pipeline stage
    (mcore:megatron/core/models/hybrid/hybrid_layer_allocation.py).
    """
    pattern = config.get("hybrid_override_pattern")
    return pattern.partition("/")[0].replace("|", "") if isinstance(pattern, str) else ""


def find_moe_layers(config: RunConfig, layers: int) -> Measurement[frozenset[int]]:
    """Numbers (from 0) of the MoE layers among ``layers``; missing where ``moe_layer_freq`` cannot be read.

    A configuration without ``moe_layer_freq`` has the default: all of them. A hybrid model names each.
    """
    if hybrid := read_hybrid_layers(config):
        return known(frozenset(number for number, kind in enumerate(hybrid) if kind == "E"))
    pattern = config.get("moe_layer_freq") if config.knows("moe_layer_freq") else 1
    moe_layers = read_moe_pattern(pattern, layers)
    return known_or_missing(moe_layers, f"moe_layer_freq {pattern} does not name the MoE layers")


def _read_pattern_text(text: str) -> tuple[int, ...]:
    flags: list[int] = []
    for term in text.replace(" ", "").strip("()").split("+"):
        match = _PATTERN_TERM.fullmatch(term)
        if not match or len(flags) > _MOST_LAYERS:
            return ()
        flags += [int(flag) for flag in match.group(1).split(",")] * int(match.group(2) or 1)
    return tuple(flags)


def _is_gated(config: RunConfig) -> bool | None:
    """Whether MLPs have a gate: part of the activation in Megatron-LM, a setting of its own in Megatron-Bridge."""
    for key in ("gated_linear_unit", "swiglu"):
        if config.knows(key):
            return config.get(key) is True
    return None


def _is_tied(config: RunConfig) -> bool | None:
    if config.knows("untie_embeddings_and_output_weights"):
        return config.get("untie_embeddings_and_output_weights") is not True
    if config.knows("share_embeddings_and_output_weights"):
        return config.get("share_embeddings_and_output_weights") is True
    return None


def _read_attention(config: RunConfig, hidden: int, heads: int) -> Measurement[_Attention]:
    if config.get("multi_latent_attention") is True:
        return _read_latent_attention(config, heads)
    channels = config.whole_number("kv_channels") or hidden // heads
    groups = config.whole_number("num_query_groups")
    if groups is None and config.get("group_query_attention") is True:
        return unstated("num_query_groups")
    groups = groups if groups and config.get("group_query_attention") is not False else heads
    query, key = channels * heads, channels * groups
    return known(_Attention(query, key, key, context=query))


def _read_latent_attention(config: RunConfig, heads: int) -> Measurement[_Attention]:
    keys = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    sizes = {key: config.whole_number(key) for key in keys}
    unknown = [key for key, value in sizes.items() if value is None]
    if not config.knows("q_lora_rank"):
        unknown.append("q_lora_rank")
    if unknown:
        return unstated(*sorted(unknown))
    rank, head, rotary, value = (sizes[key] or 0 for key in keys)
    latent = LatentAttention(config.whole_number("q_lora_rank"), rank, head, rotary)
    query = heads * (head + rotary)
    return known(_Attention(query, query, heads * value, context=heads * value, latent=latent))


def _read_mlp(config: RunConfig, layers: int, hidden: int) -> Measurement[_Mlp]:
    experts = config.whole_number("num_moe_experts") or 0
    found = find_moe_layers(config, layers) if experts else known(frozenset[int]())
    if found.value is None:
        return missing(str(found.missing_reason))
    moe_layers = found.value
    dense_ffn = config.whole_number("ffn_hidden_size")
    expert_ffn = config.whole_number("moe_ffn_hidden_size") or dense_ffn
    top_k = config.whole_number("moe_router_topk")
    needed = (
        ("ffn_hidden_size", dense_ffn, len(moe_layers) < layers),
        ("moe_ffn_hidden_size", expert_ffn, bool(moe_layers)),
        ("moe_router_topk", top_k, bool(moe_layers)),
    )
    unknown = [key for key, value, is_needed in needed if is_needed and not value]
    if unknown:
        return unstated(*unknown)
    mlp = _Mlp(
        moe_layers=moe_layers,
        dense_ffn=dense_ffn or 0,
        experts=experts,
        top_k=top_k or 0,
        expert_ffn=expert_ffn or 0,
        expert_hidden=config.whole_number("moe_latent_size") or hidden,
        shared_ffn=config.whole_number("moe_shared_expert_intermediate_size") or 0,
    )
    return known(mlp)
