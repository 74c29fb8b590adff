"""Tokens per expert of one rank, from the shapes of its experts' GEMMs."""

from __future__ import annotations

import pytest

from tests.facts.views import measure, run_view, step_view
from three_walls.facts import token_balance
from three_walls.facts.token_balance import (
    EXPERT_INPUT,
    EXPERT_OUTPUT,
    ExpertPass,
    find_expert_passes,
    received_tokens_rank_ratio,
)
from three_walls.lib.fact import FactValue
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.step.gemms import FORWARD, REPLAY, Gemm


def gemm(tokens: int, direction: str = FORWARD) -> Gemm:
    return Gemm(1, tokens, 8, 8, direction, (8, 8), tokens)


def config(**values: int) -> RunConfig:
    return RunConfig({key: ConfigValue(value, "test") for key, value in values.items()})


EXPERTS_4 = {"num_moe_experts": 4, "expert_model_parallel_size": 2}


def measure_balance(
    passes: tuple[ExpertPass, ...] | Measurement[tuple[ExpertPass, ...]], **values: int
) -> dict[str, tuple[FactValue, str | None]]:
    step = step_view(run=run_view(config(**values)))
    return measure(token_balance, run=step.run, step=step, expert_passes=passes, received_by_rank=missing("one rank"))


def balance(passes: tuple[ExpertPass, ...], **values: int) -> dict[str, FactValue]:
    return {name: value for name, (value, _) in measure_balance(passes, **values).items()}


def test_a_pass_ends_where_another_layer_multiplies() -> None:
    layer = [(gemm(9), "query, key and value"), (gemm(5), EXPERT_INPUT), (gemm(5), EXPERT_OUTPUT)]
    gemms = [*layer, (gemm(7), EXPERT_INPUT), (gemm(7), EXPERT_OUTPUT), *layer]
    assert find_expert_passes(gemms) == (ExpertPass((5, 7)), ExpertPass((5,)))


def test_only_forward_passes_count() -> None:
    assert find_expert_passes([(gemm(5), EXPERT_INPUT), (gemm(5, REPLAY), EXPERT_INPUT)]) == (ExpertPass((5,)),)


def test_a_hot_expert_is_compared_with_the_mean_of_all_experts_layers_and_micro_batches() -> None:
    found = balance((ExpertPass((100, 900)), ExpertPass((100, 100))), **EXPERTS_4)
    assert found["expert_tokens_largest_count"] == 900
    assert found["expert_tokens_largest_ratio"] == 3.0
    assert found["pass_tokens_largest_ratio"] == pytest.approx(1000 / 600)
    assert found["received_tokens_count"] == 1200


def test_even_routing_is_one() -> None:
    found = balance((ExpertPass((100, 100)), ExpertPass((100, 100))), **EXPERTS_4)
    assert (found["expert_tokens_largest_ratio"], found["pass_tokens_largest_ratio"]) == (1.0, 1.0)


def test_an_expert_without_tokens_counts_in_the_mean() -> None:
    assert balance((ExpertPass((100,)), ExpertPass((50, 50))), **EXPERTS_4)["expert_tokens_largest_ratio"] == 2.0


def test_a_grouped_gemm_shows_the_tokens_of_all_experts_together() -> None:
    found = measure_balance((ExpertPass((300,)), ExpertPass((100,))), **EXPERTS_4)
    assert "one grouped GEMM" in (found["expert_tokens_largest_ratio"][1] or "")
    assert found["pass_tokens_largest_ratio"][0] == 1.5


def test_what_a_rank_got_is_compared_with_an_even_share() -> None:
    sizes = {
        **EXPERTS_4,
        "seq_length": 100,
        "micro_batch_size": 1,
        "moe_router_topk": 2,
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
    }
    assert balance((ExpertPass((200, 100)), ExpertPass((100, 100))), **sizes)["received_tokens_ratio"] == 1.25


def test_without_shapes_the_reason_stands() -> None:
    found = measure_balance(missing("no shapes"))
    assert found.pop("received_tokens_rank_ratio") == (None, "one rank")
    assert set(found.values()) == {(None, "no shapes")}


def test_ranks_are_compared_where_all_of_them_are_known() -> None:
    two = known(2)
    assert received_tokens_rank_ratio((300, 100), known(300), two) == known(1.5)
    assert "some rank" in str(received_tokens_rank_ratio((300, None), known(300), two).missing_reason)
    assert received_tokens_rank_ratio((None, None), missing("no shapes"), two) == missing("no shapes")
    assert "several ranks" in str(received_tokens_rank_ratio((300,), known(300), two).missing_reason)
    assert received_tokens_rank_ratio((None,), missing("no shapes"), known(1)) == known(1.0)
