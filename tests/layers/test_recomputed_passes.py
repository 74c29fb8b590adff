"""Forward work that runs again in the backward pass, with ranges of autograd and without."""

from __future__ import annotations

import pytest

from tests.layers.launch_tables import Pass, backward, differences, forward, in_one_thread, label, replay, settings
from tests.layers.layers import (
    ATTENTION_BACK,
    DENSE,
    DENSE_BACK,
    EXPERTS,
    EXPERTS_BACK,
    HEAD,
    HEAD_BACK,
    MOE,
    MOE_BACK,
    ROUTER,
    ROUTER_BACK,
    UPDATE,
)

TWO_LAYERS = settings(num_layers=2, pipeline_model_parallel_size=1)


def both_ways(middle: list[Pass], layer: str = MOE) -> list[Pass]:
    return [forward(layer, 0), forward(layer, 1), forward(HEAD, None), backward(HEAD_BACK, None), *middle,
            Pass(UPDATE, None)]  # fmt: skip


@pytest.mark.parametrize(("layer", "back"), [(MOE, MOE_BACK), (DENSE, DENSE_BACK)], ids=["moe", "dense"])
def test_each_layer_is_replayed_before_its_backward_pass(layer: str, back: str) -> None:
    passes = both_ways([replay(layer, 1), backward(back, 1), replay(layer, 0), backward(back, 0)], layer)
    assert differences(label(passes, TWO_LAYERS)) == []
    in_order = label(in_one_thread(passes, None), TWO_LAYERS)
    assert (
        in_order.filter(in_order["direction"] != in_order["expected_direction"])["module"].to_list() == ["outside"] * 3
    )


def test_layers_are_replayed_in_chunks() -> None:
    passes = both_ways([replay(MOE, 0), replay(MOE, 1), backward(MOE_BACK, 1), backward(MOE_BACK, 0)])
    assert differences(label(passes, TWO_LAYERS)) == []


def test_only_some_layers_are_replayed() -> None:
    passes = both_ways([backward(MOE_BACK, 1), replay(MOE, 0), backward(MOE_BACK, 0)])
    assert differences(label(passes, TWO_LAYERS)) == []


def test_attention_alone_is_replayed() -> None:
    core = "attention> attention attention_core\n"
    before, _, after = ATTENTION_BACK.partition("attention<")
    experts = EXPERTS_BACK + ROUTER_BACK + before
    rest = "attention<" + after
    passes = both_ways(
        [
            backward(experts, 1), replay(core, 1), backward(rest, 1),
            backward(experts, 0), replay(core, 0), backward(rest, 0),
        ]
    )  # fmt: skip
    assert differences(label(passes, TWO_LAYERS)) == []


def test_experts_alone_are_replayed_as_the_ranges_show() -> None:
    """Without ranges nothing separates them from the backward pass."""
    middle = [replay(ROUTER + EXPERTS, 1), backward(MOE_BACK, 1), replay(ROUTER + EXPERTS, 0), backward(MOE_BACK, 0)]
    passes = both_ways(middle)
    ranges = [("CheckpointFunctionBackward, seq = 1", number, number) for number in (4, 6)]
    assert differences(label(passes, TWO_LAYERS, ranges, nodes=(3, 5, 7))) == []
    assert "recompute" not in label(passes, TWO_LAYERS)["direction"].to_list()
