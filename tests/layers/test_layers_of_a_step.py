"""What each launch of a step is part of, layer by layer."""

from __future__ import annotations

import pytest

from tests.layers.launch_tables import (
    Pass,
    Range,
    backward,
    differences,
    forward,
    in_one_thread,
    label,
    replay,
    settings,
)
from tests.layers.layers import (
    ATTENTION,
    ATTENTION_BACK,
    DENSE,
    DENSE_BACK,
    EMBEDDING,
    EXPERTS,
    EXPERTS_BACK,
    HEAD,
    HEAD_BACK,
    MIXER,
    MIXER_BACK,
    MLP,
    MLP_BACK,
    MOE,
    MOE_BACK,
    ROUTER,
    ROUTER_BACK,
    TWO_MICRO_BATCHES,
    UNFUSED,
    UNFUSED_BACK,
    UPDATE,
    without_exchanges,
)
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.operators import EVALUATES


def micro_batch(number: int, layers: list[tuple[str, str]]) -> list[Pass]:
    """Forward through ``layers`` and back."""
    count = len(layers)
    return [
        forward(EMBEDDING, None, number),
        *(forward(table, layer, number) for layer, (table, _) in enumerate(layers)),
        forward(HEAD, None, number),
        backward(HEAD_BACK, None, number),
        *(backward(layers[layer][1], layer, number) for layer in reversed(range(count))),
    ]


def step(*layers: tuple[str, str]) -> list[Pass]:
    return [*micro_batch(0, list(layers)), *micro_batch(1, list(layers)), Pass(UPDATE, None)]


def check(passes: list[Pass], config: RunConfig | None = None) -> None:
    assert differences(label(passes, config)) == []


def test_a_dense_layer_is_attention_and_an_mlp() -> None:
    check(step((DENSE, DENSE_BACK), (DENSE, DENSE_BACK)), TWO_MICRO_BATCHES)


def test_norms_after_attention_and_after_the_mlp_are_theirs() -> None:
    of_attention, of_mlp = "norm attention\nelementwise attention\n", "norm mlp\nelementwise mlp\n"
    layer = ATTENTION + of_attention + MLP + of_mlp
    # A norm's gradient is added up right after it, before that of the norm which the step reaches next.
    between = "elementwise mlp\n", "elementwise attention\n"
    back = between[0] + of_mlp + MLP_BACK + between[1] + of_attention + ATTENTION_BACK
    ends = "elementwise outside\n"
    embedding, head, head_back = forward(EMBEDDING, None), forward(HEAD, None), backward(HEAD_BACK, None)
    passes = [embedding, forward(layer, 0), forward(layer, 1), head, head_back, backward(back, 1), backward(back, 0)]
    check([*passes, backward(ends, None)], ONE_MICRO_BATCH)


def test_an_moe_layer_is_attention_router_dispatch_experts_and_combine() -> None:
    check(step((MOE, MOE_BACK), (MOE, MOE_BACK)), TWO_MICRO_BATCHES)


def test_the_first_layer_of_an_moe_model_may_be_dense() -> None:
    check(step((DENSE, DENSE_BACK), (MOE, MOE_BACK)), TWO_MICRO_BATCHES)


def test_without_exchanges_the_gemms_after_the_router_are_the_experts() -> None:
    layer = without_exchanges(MOE), without_exchanges(MOE_BACK)
    check(step(layer, layer), TWO_MICRO_BATCHES)


def test_without_a_config_the_runs_of_forward_passes_show_the_layers() -> None:
    check(step((MOE, MOE_BACK), (MOE, MOE_BACK)))


def test_passes_that_do_not_fit_the_config_have_no_layer() -> None:
    three = settings(num_layers=3, pipeline_model_parallel_size=1)
    found = label(step((DENSE, DENSE_BACK), (DENSE, DENSE_BACK)), three)
    assert found["layer"].null_count() == found["micro_batch"].null_count() == found.height
    in_layers = found.filter(found["expected_layer"].is_not_null())
    assert in_layers["module"].equals(in_layers["expected_module"], check_names=False)


@pytest.mark.parametrize("thread", [None, 1], ids=["unknown", "one"])
def test_a_head_goes_forward_up_to_its_gemm_where_one_thread_launches_all(thread: int | None) -> None:
    head, back = "norm outside\ngemm outside", "elementwise outside\n" + HEAD_BACK
    dense = [forward(DENSE, 0), forward(DENSE, 1)]
    passes = [*dense, forward(head, None), backward(back, None), backward(DENSE_BACK, 1), backward(DENSE_BACK, 0)]
    known = settings(num_layers=2, pipeline_model_parallel_size=1)
    assert differences(label(in_one_thread(passes, thread), known)) == []


def test_a_stage_without_a_head_goes_back_at_once_where_one_thread_launches_all() -> None:
    passes = [forward(DENSE, 0), forward(DENSE, 1), backward(DENSE_BACK, 1), backward(DENSE_BACK, 0)]
    known = settings(num_layers=2, pipeline_model_parallel_size=1)
    assert differences(label(in_one_thread(passes), known)) == []


def test_order_on_the_device_stands_in_for_threads_that_were_not_recorded() -> None:
    passes = step((MOE, MOE_BACK), (MOE, MOE_BACK))
    known = label(passes, TWO_MICRO_BATCHES)
    found = label(in_one_thread(passes, None), TWO_MICRO_BATCHES)
    in_layers = known["pass"].is_not_null()
    columns = ["module", "part", "direction", "layer", "micro_batch"]
    assert found.filter(in_layers).select(columns).equals(known.filter(in_layers).select(columns))


def test_the_gemms_around_the_softmax_are_core_attention() -> None:
    layer = UNFUSED + MLP, MLP_BACK + UNFUSED_BACK
    check(step(layer, layer), TWO_MICRO_BATCHES)


SHARED = """
norm            router    router
gemm            router    shared_expert
elementwise     router    shared_expert
gemm            router    shared_expert
gemm            router    router
router          router    router
"""
SHARED_BACK = """
router          router    router
gemm            router    router
gemm            router    router
gemm            router    shared_expert
gemm            router    shared_expert
elementwise     router    shared_expert
gemm            router    shared_expert
gemm            router    shared_expert
norm            router    router
"""
HAS_SHARED = {"moe_shared_expert_intermediate_size": 64, "num_layers": 2, "pipeline_model_parallel_size": 1}


def test_shared_experts_run_between_the_norm_and_the_router() -> None:
    layer = ATTENTION + SHARED + EXPERTS, EXPERTS_BACK + SHARED_BACK + ATTENTION_BACK
    check(step(layer, layer), settings(**HAS_SHARED))


def test_the_same_gemms_are_the_routers_where_no_shared_experts_are_configured() -> None:
    layer = ATTENTION + SHARED + EXPERTS, EXPERTS_BACK + SHARED_BACK + ATTENTION_BACK
    found = label(step(layer, layer), settings(**HAS_SHARED | {"moe_shared_expert_intermediate_size": None}))
    assert "shared_expert" not in found["part"].to_list()


def test_gemms_on_several_other_streams_are_not_taken_for_shared_experts() -> None:
    """Grouped GEMMs that are spread over streams look the same."""
    first, second = "gemm 9 experts expert_gemm\n", "gemm 10 experts expert_gemm\n"
    gemm = "gemm            experts   expert_gemm\n"

    def spread(table: str) -> str:
        return table.replace(gemm, first + second)

    layer = ATTENTION + ROUTER + spread(EXPERTS), spread(EXPERTS_BACK) + ROUTER_BACK + ATTENTION_BACK
    check(step(layer, layer), settings(**HAS_SHARED, moe_shared_expert_overlap=True))


def test_overlapped_shared_experts_run_on_a_stream_of_their_own() -> None:
    side = "gemm 9 router shared_expert\n"
    exchange = "ep_all_to_all   dispatch  dispatch\n"
    back = "ep_all_to_all   combine   combine\n"
    layer = (
        ATTENTION + ROUTER + EXPERTS.replace(exchange, exchange + side + side),
        EXPERTS_BACK.replace(back, back + side * 4) + ROUTER_BACK + ATTENTION_BACK,
    )
    check(step(layer, layer), settings(**HAS_SHARED, moe_shared_expert_overlap=True))


def test_linear_attention_takes_the_place_of_attention() -> None:
    """As in a model of gated delta nets, of which every layer has an MLP or experts."""
    check(step((MIXER + MLP, MLP_BACK + MIXER_BACK), (MOE, MOE_BACK)), TWO_MICRO_BATCHES)


@pytest.mark.parametrize(
    ("layer", "back"),
    [(MIXER, MIXER_BACK), (MIXER + ROUTER + EXPERTS, EXPERTS_BACK + ROUTER_BACK + MIXER_BACK)],
    ids=["mixers-alone", "mixers-and-experts"],
)
def test_a_model_may_have_no_other_attention(layer: str, back: str) -> None:
    check(step((layer, back), (layer, back)), TWO_MICRO_BATCHES)


def test_in_a_hybrid_model_every_letter_of_the_pattern_is_a_layer() -> None:
    """M*E: the first mixer has no MLP; attention and the experts after it are two layers."""
    config = settings(hybrid_override_pattern="M*E", num_layers=3, pipeline_model_parallel_size=1)
    passes = [
        forward(MIXER, 0), forward(ATTENTION, 1), forward(ROUTER + EXPERTS, 2), forward(HEAD, None),
        backward(HEAD_BACK, None), backward(EXPERTS_BACK + ROUTER_BACK, 2), backward(ATTENTION_BACK, 1),
        backward(MIXER_BACK, 0),
    ]  # fmt: skip
    check(passes, config)


def test_forward_and_backward_layers_that_are_launched_in_turn_are_told_apart_by_their_threads() -> None:
    """Expert-parallel overlap launches node by node; within one direction layers are whole."""
    nodes = [
        forward(ATTENTION + ROUTER, 0, 0), forward(EXPERTS, 0, 0), forward(ATTENTION + ROUTER, 1, 0),
        forward(EXPERTS, 1, 0),
        *(
            node
            for layer in (0, 1)
            for node in (
                backward(EXPERTS_BACK, 1 - layer, 0), forward(ATTENTION + ROUTER, layer, 1),
                backward(ROUTER_BACK, 1 - layer, 0), forward(EXPERTS, layer, 1), backward(ATTENTION_BACK, 1 - layer, 0),
            )
        ),
        backward(MOE_BACK, 1, 1), backward(MOE_BACK, 0, 1),
    ]  # fmt: skip
    check(nodes, TWO_MICRO_BATCHES)
    unknown = label(in_one_thread(nodes, None), TWO_MICRO_BATCHES)
    assert unknown["direction"].null_count() == unknown.height
    assert unknown["module"].null_count() == unknown.height


def test_delayed_weight_gradients_belong_to_the_experts_that_went_back_last() -> None:
    short = "\n".join(line for line in EXPERTS_BACK.splitlines() if not line.startswith("gemm"))
    delayed = Pass("gemm experts expert_gemm\ngemm experts expert_gemm\n", "backward", 0, 0)
    back = short.replace("elementwise     experts   expert\n", "gemm experts expert_gemm\ngemm experts expert_gemm\n")
    passes = [
        forward(MOE, 0), forward(HEAD, None), backward(HEAD_BACK, None),
        backward(back + ROUTER_BACK + ATTENTION_BACK, 0), delayed,
    ]  # fmt: skip
    found = label(passes, settings(num_layers=1, pipeline_model_parallel_size=1), [("mlp wgrad", 4, 4)])
    assert differences(found) == []


@pytest.mark.parametrize(
    "passes", [[Pass("gemm\nnorm\n", None)], [Pass("attention_unfused\ngemm\n", None)]], ids=["norm", "softmax"]
)
def test_what_neither_attends_nor_routes_is_no_layer(passes: list[Pass]) -> None:
    check(passes)


def test_what_computes_from_the_optimizers_first_kernel_on_is_its_work() -> None:
    """Muon runs GEMMs; sums over ranks between them are no work of the optimizer."""
    update = """
elementwise     outside
optimizer       outside   optimizer
all_reduce      outside
gemm            outside   optimizer
elementwise     outside   optimizer
"""
    found = label([*micro_batch(0, [(DENSE, DENSE_BACK)]), Pass(update, None)])
    parts = found.tail(5).select("module", "part").rows()
    assert parts[1:] == [
        ("outside", "optimizer"),
        ("outside", None),
        ("outside", "optimizer"),
        ("outside", "optimizer"),
    ]
    assert parts[0] == ("outside", None)


PIECES = (
    ("norm attention\ngemm attention projection\npermute attention", ""),
    ("gemm attention attention_core\nrouter attention attention_core\npermute attention attention_core", "{}"),
    ("gemm attention attention_core", "aten::bmm"),
    ("router attention attention_core", ""),  # a softmax counts as a router's where experts are selected
    ("gemm attention attention_core", "aten::bmm"),
    ("permute attention\ngemm attention projection\nelementwise attention", ""),
)
"""Attention of PyTorch's operators in pieces, each with the range around it; ``{}`` is the function of attention."""
PIECES_BACK = (
    ("gemm attention projection\ngemm attention projection\npermute attention", ""),
    ("gemm attention attention_core", "BmmBackward0"),
    ("router attention attention_core\npermute attention attention_core", ""),
    ("gemm attention attention_core", "BmmBackward0"),
    ("gemm attention attention_core\npermute attention attention_core", "{}Backward"),
    ("permute attention\ngemm attention projection\ngemm attention projection\nnorm attention", ""),
)


ONE_MICRO_BATCH = settings(num_layers=2, pipeline_model_parallel_size=1)


def of_operators(function: str) -> tuple[list[Pass], list[Range], list[int]]:
    """A step of a dense and an MoE layer, the ranges around its passes, and the backward passes without a name."""
    step: list[Pass] = []
    ranges: list[Range] = []
    nodes: list[int] = []
    for layer, mlp in enumerate((MLP, ROUTER + EXPERTS)):
        for table, text in PIECES:
            ranges += [(text.format(function), len(step), len(step))] * bool(text)
            step.append(forward(table, layer))
        step.append(forward(mlp, layer))
    step += [forward(HEAD, None), backward(HEAD_BACK, None)]
    nodes.append(len(step) - 1)
    for layer, mlp in ((1, EXPERTS_BACK + ROUTER_BACK), (0, MLP_BACK)):
        nodes.append(len(step))
        step.append(backward(mlp, layer))
        for table, text in PIECES_BACK:
            if text:
                ranges.append((EVALUATES + text.format(function), len(step), len(step)))
            else:
                nodes.append(len(step))
            step.append(backward(table, layer))
    return step, ranges, nodes


def test_attention_of_plain_operators_is_found_by_its_function() -> None:
    step, ranges, nodes = of_operators("FusedDSAIndexerLoss")
    assert differences(label(step, ONE_MICRO_BATCH, ranges, nodes)) == []


def test_attention_of_plain_operators_that_nothing_names_is_not_guessed_at() -> None:
    step, ranges, nodes = of_operators("SomeFunction")
    found = label(step, ONE_MICRO_BATCH, ranges, nodes)
    assert found["pass"].null_count() == found.height


@pytest.mark.parametrize("node", ["FusedAttnFuncBackward", "CheckpointFunctionBackward"])
def test_what_a_hook_runs_again_before_attention_goes_back_ends_no_layer(node: str) -> None:
    step = [forward(ATTENTION + MLP, layer) for layer in range(2)]
    step += [forward(HEAD, None), backward(HEAD_BACK, None)]
    nodes, ranges = [len(step) - 1], []
    for layer in (1, 0):
        nodes.append(len(step))
        step.append(backward(MLP_BACK + "gemm attention projection\ngemm attention projection", layer))
        ranges += [(f"{EVALUATES}{node}", len(step), len(step) + 1)]
        ranges += [("_LayerNormLinear, seq = 7, op_id = 1", len(step), len(step))]
        hook = "norm attention projection\ngemm attention projection\nelementwise attention projection"
        step.append(replay(hook, layer))
        step.append(backward("attention< attention attention_core\nelementwise attention", layer))
        nodes.append(len(step))
        step.append(backward("gemm attention projection\ngemm attention projection\nnorm attention", layer))
    found = label(step, settings(num_layers=2, pipeline_model_parallel_size=1), ranges, nodes)
    assert differences(found) == []


def test_shared_experts_and_norms_that_run_again_are_told_from_the_router_s_backward_pass() -> None:
    again = "gemm router shared_expert\nelementwise router shared_expert\ngemm router shared_expert\n"
    gemm = "gemm            router    shared_expert\n"
    before, _, _ = SHARED_BACK.partition(gemm)
    summed, _, others = EXPERTS_BACK.strip().partition("\n")
    step = [forward(ATTENTION + SHARED + EXPERTS, layer) for layer in range(2)]
    step += [forward(HEAD, None), backward(HEAD_BACK, None)]
    nodes, ranges = [len(step) - 1], []
    for layer in (1, 0):
        ranges += [(f"{EVALUATES}MulBackward0", len(step), len(step) + 1), ("RMSNorm, seq = 9", len(step), len(step))]
        step += [replay("norm router router", layer), backward(summed, layer)]
        nodes.append(len(step))
        step.append(backward(f"{others}\n{before}", layer))
        ranges.append(("CheckpointFunctionBackward, seq = 1", len(step), len(step)))
        step.append(replay(again, layer))
        nodes.append(len(step))
        step.append(backward(SHARED_BACK[len(before) :] + ATTENTION_BACK, layer))
    assert differences(label(step, settings(**HAS_SHARED), ranges, nodes)) == []


def test_the_function_marks_nothing_where_kernels_have_attention_s_names() -> None:
    around_norm = [("FusedDSAIndexerLoss", 0, 0)]
    step = [forward("norm attention", 0), forward(ATTENTION[ATTENTION.index("gemm") :] + MLP, 0)]
    assert differences(label(step, settings(num_layers=1, pipeline_model_parallel_size=1), around_norm)) == []
