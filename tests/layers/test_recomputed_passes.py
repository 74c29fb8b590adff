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
    MLP,
    MLP_BACK,
    MOE,
    MOE_BACK,
    ROUTER,
    ROUTER_BACK,
    UNFUSED,
    UNFUSED_BACK,
    UPDATE,
    without_exchanges,
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


@pytest.mark.parametrize(
    "function", ["CheckpointFunction", "_CheckpointFunction"], ids=["megatron", "transformer-engine-in-fp8"]
)
def test_experts_alone_are_replayed_as_the_ranges_show(function: str) -> None:
    """Without ranges nothing separates them from the backward pass."""
    middle = [replay(ROUTER + EXPERTS, 1), backward(MOE_BACK, 1), replay(ROUTER + EXPERTS, 0), backward(MOE_BACK, 0)]
    passes = both_ways(middle)
    ranges = [(f"{function}Backward, seq = 1", number, number) for number in (4, 6)]
    assert differences(label(passes, TWO_LAYERS, ranges, nodes=(3, 5, 7))) == []
    assert "recompute" not in label(passes, TWO_LAYERS)["direction"].to_list()


def wrong_in_order(passes: list[Pass], count: int) -> list[dict[str, object]]:
    """What is wrong in layers where threads are not known. Of the output layer the direction is not."""
    found = differences(label(in_one_thread(passes, None), settings(num_layers=count, pipeline_model_parallel_size=1)))
    assert all(row["module"] == "outside" for row in found if row["expected_module"] == "outside")
    return [row for row in found if row["expected_module"] != "outside"]


def test_unfused_attention_alone_is_replayed_with_the_gemms_around_its_softmax() -> None:
    core = """
gemm               attention  attention_core
attention_unfused> attention  attention_core
gemm               attention  attention_core
"""
    gemm = "gemm               attention  attention_core"
    before, _, after = UNFUSED_BACK.partition(gemm)
    layers = [(backward(MLP_BACK + before, at), replay(core, at), backward(gemm + after, at)) for at in (1, 0)]
    passes = both_ways([each for layer in layers for each in layer], UNFUSED + MLP)
    assert differences(label(passes, TWO_LAYERS)) == []
    assert wrong_in_order(passes, 2) == []


@pytest.mark.parametrize(
    ("layer", "back"),
    [
        (MOE, MOE_BACK),
        (without_exchanges(MOE), without_exchanges(MOE_BACK)),
        (DENSE, DENSE_BACK),
        (UNFUSED + MLP, MLP_BACK + UNFUSED_BACK),
    ],
    ids=["moe", "all-experts-here", "dense", "unfused"],
)
@pytest.mark.parametrize("replayed", [((1,), (0,)), ((0, 1),)], ids=["each", "chunk"])
def test_whole_layers_are_replayed_by_threads_and_by_order_alike(
    layer: str, back: str, replayed: tuple[tuple[int, ...], ...]
) -> None:
    middle = []
    for chunk in replayed:
        middle += [*(replay(layer, at) for at in chunk), *(backward(back, at) for at in reversed(chunk))]
    passes = both_ways(middle, layer)
    assert differences(label(passes, TWO_LAYERS)) == []
    assert wrong_in_order(passes, 2) == []


def some_replayed(replayed: tuple[int, ...], count: int = 4) -> list[Pass]:
    """``count`` layers forward and back, of which some are replayed."""
    return [
        *(forward(MOE, layer) for layer in range(count)),
        *(
            each
            for layer in reversed(range(count))
            for each in ([replay(MOE, layer)] if layer in replayed else []) + [backward(MOE_BACK, layer)]
        ),
        Pass(UPDATE, None),
    ]


@pytest.mark.parametrize("replayed", [(0,), (0, 1), (3,)])
def test_some_of_four_layers_are_replayed(replayed: tuple[int, ...]) -> None:
    passes = some_replayed(replayed)
    assert differences(label(passes, settings(num_layers=4, pipeline_model_parallel_size=1))) == []
    assert wrong_in_order(passes, 4) == []


def test_where_the_order_fits_two_readings_nothing_is_guessed_at() -> None:
    """F F B F B: of two layers the first is replayed, or of two micro-batches through one layer the first."""
    passes = some_replayed((0,), 2)
    assert differences(label(passes, TWO_LAYERS)) == []
    found = label(in_one_thread(passes, None), TWO_LAYERS)
    in_layers = found.filter(found["expected_layer"].is_not_null())
    for column in ("direction", "module", "pass", "layer"):
        assert in_layers[column].null_count() == in_layers.height, column


def test_the_replay_of_a_part_that_the_ranges_show_stays_in_its_layer() -> None:
    """The activation of the experts alone runs again between their backward GEMMs (``moe_act``)."""
    activation = "elementwise     experts   expert\n"
    before, _, after = EXPERTS_BACK.partition(activation)
    middle = []
    for layer in (1, 0):
        rest = activation + after + ROUTER_BACK + ATTENTION_BACK
        middle += [backward(before, layer), replay(activation, layer), backward(rest, layer)]
    passes = both_ways(middle)
    ranges = [("CheckpointWithoutOutputFunctionBackward, seq = 1", number, number) for number in (5, 8)]
    assert differences(label(passes, TWO_LAYERS, ranges, nodes=(3, 4, 6, 7, 9))) == []
