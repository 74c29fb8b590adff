"""Layers under expert-parallel overlap: one micro-batch's forward pass is launched between another's backward pass.

Megatron Core launches the nodes of a schedule (models/common/model_chunk_schedule_plan.py). The thread of autograd runs
those that go back, so within one direction layers are as whole as without the overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.layers.launch_tables import Pass, backward, differences, forward, in_one_thread, label, settings
from tests.layers.layers import (
    ATTENTION,
    ATTENTION_BACK,
    EXPERTS,
    EXPERTS_BACK,
    HEAD,
    HEAD_BACK,
    MLP,
    MLP_BACK,
    ROUTER,
    ROUTER_BACK,
    TWO_MICRO_BATCHES,
)
from three_walls.layers.labels import LabelledOperations
from three_walls.megatron.settings.run_config import RunConfig

Nodes = tuple[str, str]
"""What the node of attention and the router launches, and the nodes of the experts."""
MOE, MOE_BACK = (ATTENTION + ROUTER, EXPERTS), (EXPERTS_BACK, ROUTER_BACK + ATTENTION_BACK)


def together(layer: int, forth: Nodes = MOE, back: Nodes = MOE_BACK) -> list[Pass]:
    """Nodes of the second micro-batch's forward pass through ``layer``, and of the first one's backward pass."""
    other = 1 - layer
    return [
        forward(forth[0], layer, 1),
        backward(back[0], other, 0),
        forward(forth[1], layer, 1),
        backward(back[1], other, 0),
    ]


def step(forth: Sequence[Nodes] = (MOE, MOE), back: Sequence[Nodes] = (MOE_BACK, MOE_BACK)) -> list[Pass]:
    """Two micro-batches through two layers."""
    return [
        *(forward(forth[layer][0] + forth[layer][1], layer, 0) for layer in (0, 1)),
        forward(HEAD, None, 0),
        backward(HEAD_BACK, None, 0),
        *together(0, forth[0], back[1]),
        *together(1, forth[1], back[0]),
        forward(HEAD, None, 1),
        backward(HEAD_BACK, None, 1),
        *(backward(back[layer][0] + back[layer][1], layer, 1) for layer in (1, 0)),
    ]


def wrong_in_layers(found: LabelledOperations) -> list[dict[str, object]]:
    """What is wrong in layers. Of the output layer it is not seen which micro-batch it is of, only that it is none."""
    assert set(found.filter(found["expected_module"] == "outside")["module"].to_list()) <= {"outside", None}
    return [row for row in differences(found) if row["expected_module"] != "outside"]


def check(passes: list[Pass], config: RunConfig = TWO_MICRO_BATCHES) -> None:
    assert wrong_in_layers(label(passes, config)) == []


def test_each_thread_runs_whole_layers() -> None:
    check(step())


def test_without_a_config_the_layers_of_a_micro_batch_are_not_counted() -> None:
    """Forward passes follow one another without end: where a micro-batch begins is not seen."""
    unnumbered = [each._replace(layer=None, micro_batch=None) for each in step()]
    assert wrong_in_layers(label(unnumbered)) == []


def test_one_thread_alone_shows_no_layers() -> None:
    found = label(in_one_thread(step(), None), TWO_MICRO_BATCHES)
    for column in ("direction", "module", "pass", "layer", "micro_batch"):
        assert found[column].null_count() == found.height, column


def test_attention_may_go_back_before_the_other_layer_combines() -> None:
    """As ``ep_overlap_early_attn_memory_release`` has it."""
    passes = step()
    at = next(number for number, each in enumerate(passes) if each.direction == "backward" and number > 4) + 1
    passes[at], passes[at + 1] = passes[at + 1], passes[at]
    check(passes)


def test_a_dense_layer_between_them_stays_dense() -> None:
    check(step(((ATTENTION, MLP), MOE), ((MLP_BACK, ATTENTION_BACK), MOE_BACK)))


def test_permutations_of_the_rotary_embedding_belong_to_attention() -> None:
    own = ATTENTION.replace("attention>", "permute attention\nattention>")
    core = "attention<    attention  attention_core\n"
    own_back = ATTENTION_BACK.replace(core, core + "permute attention\n")
    check(step(((own + ROUTER, EXPERTS),) * 2, ((EXPERTS_BACK, ROUTER_BACK + own_back),) * 2))


SHARED = "gemm router shared_expert\nelementwise router shared_expert\ngemm router shared_expert\n"
SHARED_BACK = "gemm router shared_expert\n" * 2 + SHARED.partition("\n")[2] + "gemm router shared_expert\n"


def test_shared_experts_run_in_the_node_of_attention() -> None:
    norm, rest = ROUTER.strip().split("\n", 1)
    rest_back, norm_back = ROUTER_BACK.strip().rsplit("\n", 1)
    router, router_back = f"{norm}\n{SHARED}{rest}\n", f"{rest_back}\n{SHARED_BACK}{norm_back}\n"
    shared = settings(moe_shared_expert_intermediate_size=64).values
    config = replace(TWO_MICRO_BATCHES, values={**TWO_MICRO_BATCHES.values, **shared})
    check(step(((ATTENTION + router, EXPERTS),) * 2, ((EXPERTS_BACK, router_back + ATTENTION_BACK),) * 2), config)


@pytest.mark.parametrize("thread", [1, 2], ids=["main", "autograd"])
def test_delayed_weight_gradients_are_launched_after_the_other_layers_nodes(thread: int) -> None:
    """The range that the schedule opens around them shows them, whichever thread launches them."""
    gemms = "gemm experts expert_gemm\n"
    first, _, last = EXPERTS_BACK.rpartition("elementwise     experts   expert\n")
    short = first.replace("gemm            experts   expert_gemm\n", "", 1) + "elementwise experts expert\n"
    short += last.replace("gemm            experts   expert_gemm\n", "", 1)
    passes = step(back=((short, ROUTER_BACK + ATTENTION_BACK),) * 2)
    with_delayed = []
    ranges = []
    for each in passes:
        with_delayed.append(each)
        if "combine   combine" in each.table and each.direction == "backward":
            ranges.append(("mlp wgrad", len(with_delayed), len(with_delayed)))
            with_delayed.append(backward(gemms * 2, each.layer, each.micro_batch)._replace(thread=thread))
    assert len(ranges) == 4
    assert wrong_in_layers(label(with_delayed, TWO_MICRO_BATCHES, ranges)) == []
