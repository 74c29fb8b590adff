"""Operations of a step, counted on paper and against Megatron's log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts.model_runs import toy, wide, without
from three_walls.lib.measurement import known
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.count_flops import ForwardFlops, count_forward, step_flops
from three_walls.megatron.model_shape import ModelShape, padded_vocabulary, read_model_shape, read_moe_pattern
from three_walls.megatron.settings.run_config import RunConfig


def shape_of(config: RunConfig) -> ModelShape:
    shape = read_model_shape(config)
    assert shape.value is not None, shape.missing_reason
    return shape.value


def forward(**values: ConfigData) -> ForwardFlops:
    return count_forward(shape_of(toy(**values)))


def test_the_toy_model_counts_as_on_paper() -> None:
    assert forward() == ForwardFlops(
        projections=2 * 2 * (8 * (8 + 4 + 4) + 8 * 8),  # two layers, two operations, q k v and the output
        attention=2 * 2 * (8 + 8) * 16 // 2,  # scores and values, 16 keys, half of them masked
        experts=2 * 2 * 2 * 3 * 8 * 6,  # two layers, two operations, two experts of three matrices
        router=2 * 2 * 8 * 4,
        logits=2 * 8 * 32,
    )


def test_the_first_layer_can_be_dense_and_experts_can_share_one() -> None:
    found = forward(moe_layer_freq="([0]*1+[1]*1)", moe_shared_expert_intermediate_size=5)
    assert found.dense_mlp == 2 * 3 * 8 * 10
    assert found.experts == 2 * 2 * 3 * 8 * 6
    assert found.shared_experts == 2 * 3 * 8 * 5


def test_a_dense_model_has_no_experts_and_an_ungated_mlp_two_matrices() -> None:
    found = forward(num_moe_experts=None, swiglu=False)
    assert (found.experts, found.router, found.dense_mlp) == (0, 0, 2 * 2 * 2 * 8 * 10)


def test_megatron_bridge_has_its_own_words_for_gated_and_tied() -> None:
    named = {"gated_linear_unit": True, "share_embeddings_and_output_weights": True}
    shape = shape_of(without(toy(**named), "swiglu", "untie_embeddings_and_output_weights"))
    assert (shape.is_gated, shape.is_tied) == (True, True)
    shape = shape_of(without(toy(), "untie_embeddings_and_output_weights"))
    assert shape.is_tied is None


def test_a_layer_of_multi_token_prediction_copies_the_last_and_has_logits_of_its_own() -> None:
    plain, more = forward(), forward(mtp_num_layers=1)
    assert more.experts == plain.experts * 3 // 2
    assert more.logits == 2 * plain.logits
    assert more.prediction == 2 * (3 * 8 + 2 * 8 * 8)


def test_latent_attention_projects_in_two_steps() -> None:
    found = forward(
        multi_latent_attention=True,
        q_lora_rank=5,
        kv_lora_rank=3,
        qk_head_dim=2,
        qk_pos_emb_head_dim=1,
        v_head_dim=2,
    )
    # Queries 5 x (8 + 4 x 3 + 1), keys and values 3 x (8 + 4 x (2 + 2) + 1), rotary 8 x 1, output 8 x 8.
    assert found.projections == 2 * 2 * (5 * 21 + 3 * 25 + 8 + 64)
    assert found.attention == 2 * 16 * (4 * 3 + 4 * 2)


def test_experts_of_a_latent_size_pay_for_the_way_there_and_back() -> None:
    assert forward(moe_latent_size=4).experts == 2 * (2 * 2 * 3 * 4 * 6 + 2 * 2 * 8 * 4)


def test_the_log_of_a_real_run_gives_the_same() -> None:
    # wide-nvlink-alltoall: 232.9 ms and 162.4 TFLOP/s per GPU on four GPUs.
    found = count_forward(shape_of(wide()))
    tokens = 8 * 4096
    assert step_flops(found.as_logged, tokens) / 4 / 0.2329 == pytest.approx(162.4e12, rel=0.002)
    assert found.as_logged < found.total < 1.01 * found.as_logged


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (("seq_length",), "seq_length"),
        (("num_moe_experts",), "num_moe_experts"),
        (("swiglu",), "swiglu"),
        (("padded_vocab_size",), "vocab_size"),
        (("moe_ffn_hidden_size", "ffn_hidden_size"), "moe_ffn_hidden_size"),
        (("num_query_groups",), "num_query_groups"),
    ],
)
def test_a_setting_that_is_not_stated_is_named(keys: tuple[str, ...], reason: str) -> None:
    shape = read_model_shape(without(toy(), *keys))
    assert shape.value is None
    assert reason in str(shape.missing_reason)


@pytest.mark.parametrize("key", ["experimental_attention_variant", "hybrid_override_pattern"])
def test_models_of_another_kind_are_not_counted(key: str) -> None:
    assert read_model_shape(toy(**{key: "M*"})).is_missing


def test_the_vocabulary_is_padded_as_megatron_pads_it() -> None:
    config = without(toy(vocab_size=32000, tokenizer_type="NullTokenizer"), "padded_vocab_size")
    assert padded_vocabulary(config) == known(32128)
    config = without(toy(vocab_size=32000, tensor_model_parallel_size=2), "padded_vocab_size")
    assert padded_vocabulary(config) == known(32000)


@pytest.mark.parametrize(
    ("value", "layers"),
    [(1, {0, 1, 2, 3}), (2, {0, 2}), ((0, 1, 1, 1), {1, 2, 3}), ("([0]*1+[1]*3)", {1, 2, 3}), ("[0,1]*2", {1, 3})],
)
def test_the_layers_of_experts_are_read(value: ConfigData, layers: set[int]) -> None:
    assert read_moe_pattern(value, 4) == layers


@pytest.mark.parametrize("value", [0, True, (1, 1), "[1]*3", "__import__('os')", "[2]*4", None])
def test_a_pattern_that_does_not_fit_names_no_layers(value: ConfigData) -> None:
    assert read_moe_pattern(value, 4) is None


@given(layers=st.integers(1, 40), factor=st.integers(2, 5))
def test_work_in_the_layers_grows_with_their_number(layers: int, factor: int) -> None:
    few, many = forward(num_layers=layers), forward(num_layers=layers * factor)
    assert many.total - many.logits == factor * (few.total - few.logits)
    assert many.logits == few.logits


@given(top_k=st.integers(1, 4), ffn=st.integers(1, 64))
def test_expert_work_is_proportional_to_top_k_and_width(top_k: int, ffn: int) -> None:
    one = forward(moe_router_topk=1, moe_ffn_hidden_size=1).experts
    assert forward(moe_router_topk=top_k, moe_ffn_hidden_size=ffn).experts == one * top_k * ffn


@given(cut=st.integers(0, 6))
def test_stages_together_do_the_work_of_the_model(cut: int) -> None:
    shape = shape_of(toy(num_layers=6, mtp_num_layers=1))
    first = count_forward(shape, range(cut), has_output=False)
    last = count_forward(shape, range(cut, 6))
    assert first.total + last.total == count_forward(shape).total
