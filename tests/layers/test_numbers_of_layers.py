"""Which layer and micro-batch a pass is of: from the config, else from runs of forward passes; else of none.

Layers have the numbers of the rank's own stage, from 0 and dense ones included.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.layers.launch_tables import Pass, backward, differences, forward, in_one_thread, label, replay, settings
from tests.layers.layers import DENSE, DENSE_BACK, EMBEDDING, HEAD, HEAD_BACK, MOE, MOE_BACK, UPDATE
from three_walls.layers.labels import LabelledOperations
from three_walls.megatron.settings.run_config import ConfigData, RunConfig

_CORE = "attention>    attention  attention_core\n"
_CORE_BACK = "attention<    attention  attention_core\n"


def config(layers: int, micro_batches: int | None = None, stages: int = 1, **values: ConfigData) -> RunConfig:
    """Of a run of ``stages`` ranks; ``micro_batches`` of a step, where the config states what they follow from."""
    known = {"pipeline_model_parallel_size": stages, "num_layers": layers, **values}
    if micro_batches is None:
        return settings(**known)
    batch = {"micro_batch_size": 1, "global_batch_size": micro_batches}
    return settings(stages, **known, **batch, tensor_model_parallel_size=1, context_parallel_size=1)


def passes(order: str, layers: int = 2, table: str = MOE, back: str = MOE_BACK) -> list[Pass]:
    """``order``: F and B, a micro-batch forward or back through all ``layers``; R, back with every layer replayed."""
    found: list[Pass] = []
    forth = backs = 0
    for letter in order:
        if letter == "F":
            found += [forward(table, layer, forth) for layer in range(layers)]
            forth += 1
            continue
        for layer in reversed(range(layers)):
            found += [replay(table, layer, backs)] * (letter == "R") + [backward(back, layer, backs)]
        backs += 1
    return [*found, Pass(UPDATE, None)]


def layers_in_order(found: LabelledOperations, direction: str) -> list[tuple[int, int]]:
    """(micro-batch, layer) of the passes of ``direction``, in the order of their launches."""
    rows = found.filter(found["direction"] == direction, found["layer"].is_not_null())
    return rows.unique("pass", keep="first").sort("launch_start_ns").select("micro_batch", "layer").rows()


@pytest.mark.parametrize("order", ["FBFB", "FFBB", "FFBFBB", "FRFR", "FFRR"])
def test_micro_batches_go_back_in_the_order_in_which_they_went_forward(order: str) -> None:
    """One after the other, all forward first, or one ahead of the other as on a stage of a pipeline."""
    found = label(passes(order), config(2, order.count("F")))
    assert differences(found) == []
    micro_batches = range(order.count("F"))
    assert layers_in_order(found, "forward") == [(number, layer) for number in micro_batches for layer in (0, 1)]
    assert layers_in_order(found, "backward") == [(number, layer) for number in micro_batches for layer in (1, 0)]


@pytest.mark.parametrize("order", ["FBFB", "FRFR"])
def test_a_layer_may_run_one_kernel_of_attention_for_each_part_of_its_sequence(order: str) -> None:
    """As with context parallelism: between the parts the ranks exchange keys and values, and no GEMM is launched."""
    table = DENSE.replace(_CORE, _CORE + "elementwise attention\n" + _CORE)
    back = DENSE_BACK.replace(_CORE_BACK, _CORE_BACK + "elementwise attention\n" + _CORE_BACK)
    assert (table, back) != (DENSE, DENSE_BACK)
    assert differences(label(passes(order, table=table, back=back), config(2, 2))) == []


@pytest.mark.parametrize("order", ["FFBFBB", "FFRFRR"])
def test_a_pipeline_stage_numbers_its_own_layers_from_zero(order: str) -> None:
    assert differences(label(passes(order), config(4, 3, stages=2))) == []


def test_a_stage_may_have_fewer_layers_than_the_others() -> None:
    """The micro-batches tell how many it has, whatever the config says of the stages."""
    uneven = config(5, 3, stages=2, num_layers_in_first_pipeline_stage=2)
    assert differences(label(passes("FFBFBB"), uneven)) == []


def test_layers_of_multi_token_prediction_follow_the_others() -> None:
    found = label(passes("FBFB", layers=3), config(2, 2, mtp_num_layers=1))
    assert differences(found) == []
    assert found.filter(found["stack"] == "mtp")["layer"].unique().to_list() == [2]
    assert found.filter(found["layer"] < 2)["stack"].null_count() == found.filter(found["layer"] < 2).height


def test_only_the_stage_that_runs_more_layers_predicts_more_tokens() -> None:
    own = label(passes("FFBFBB"), config(4, 3, stages=2, mtp_num_layers=1))
    last = label(passes("FFBFBB", layers=3), config(4, 3, stages=2, mtp_num_layers=1))
    assert own["stack"].null_count() == own.height
    assert last.filter(last["stack"] == "mtp")["layer"].unique().to_list() == [2]


TOWER, TOWER_BACK = (
    "\n".join(f"{line.split()[0]} outside" for line in table.split("\n") if line) for table in (DENSE, DENSE_BACK)
)
"""A layer of a vision tower: dense, and no layer of the model."""


def sees(order: str, *, is_frozen: bool = False, is_replayed: bool = False) -> list[Pass]:
    """Each micro-batch (``F``, ``B``) with three layers of a tower, then the embedding and two MoE layers."""
    found: list[Pass] = []
    forth = backs = 0
    for letter in order:
        if letter == "F":
            found += [forward(TOWER, None, forth)] * 3 + [forward(EMBEDDING, None, forth)]
            found += [forward(MOE, 0, forth), forward(MOE, 1, forth), forward(HEAD, None, forth)]
            forth += 1
            continue
        found.append(backward(HEAD_BACK, None, backs))
        for layer in (1, 0):
            found += [replay(MOE, layer, backs)] * is_replayed + [backward(MOE_BACK, layer, backs)]
        if not is_frozen:
            for _ in range(3):
                found += [replay(TOWER, None, None)] * is_replayed + [backward(TOWER_BACK, None, backs)]
        backs += 1
    return [*found, Pass(UPDATE, None)]


SEES = config(2, 2, freeze_vision_model=False)


@pytest.mark.parametrize("order", ["FBFB", "FFBB"])
def test_layers_of_a_vision_tower_lie_outside_and_the_model_keeps_its_numbers(order: str) -> None:
    found = label(sees(order), SEES)
    assert differences(found) == []
    is_tower = found["stack"] == "vision"
    assert found.filter(is_tower)["pass"].null_count() == is_tower.sum()
    of_layers = 3 * (len(TOWER.splitlines()) + len(TOWER_BACK.splitlines()))
    embedding = 2  # what lies between the last layer and the model's first norm is not told from the tower
    assert is_tower.sum() == 2 * (of_layers + embedding)


def test_a_frozen_tower_runs_forward_only() -> None:
    assert differences(label(sees("FBFB", is_frozen=True), SEES)) == []


def test_a_replayed_tower_is_part_of_no_layer() -> None:
    assert differences(label(sees("FBFB", is_replayed=True), SEES)) == []


def test_a_tower_behind_a_pipeline_is_on_the_first_stage_alone() -> None:
    known = config(4, 2, stages=2, freeze_vision_model=False)
    assert differences(label(sees("FFBB"), known)) == []
    assert differences(label(passes("FFBB"), known)) == []


@pytest.mark.parametrize(
    "stated",
    [
        config(2, 2),  # no model that sees
        config(2, freeze_vision_model=False),  # micro-batches are not known
        config(4, 2, stages=2, freeze_vision_model=False, mtp_num_layers=1),  # which stage it is is not known
    ],
)
def test_without_a_count_of_the_model_s_own_layers_no_tower_is_told_apart(stated: RunConfig) -> None:
    found = label(sees("FBFB"), stated)
    assert found["stack"].null_count() == found.height


def test_a_dense_layer_has_a_number_too() -> None:
    order = [
        forward(DENSE, 0), forward(MOE, 1), forward(HEAD, None),
        backward(HEAD_BACK, None), backward(MOE_BACK, 1), backward(DENSE_BACK, 0),
    ]  # fmt: skip
    assert differences(label(order, config(2))) == []


def without_numbers(order: Sequence[Pass]) -> list[Pass]:
    return [each._replace(layer=None, micro_batch=None) for each in order]


@pytest.mark.parametrize(
    "stated",
    [
        config(2, 3),  # two micro-batches run
        config(3, 2),  # two layers run
        config(3),
        config(4, 2, stages=2, virtual_pipeline_model_parallel_size=2),  # several chunks of layers
        config(2, stages=2),  # one stage of an unknown number of micro-batches
    ],
    ids=["micro-batches", "layers", "layers-alone", "chunks", "stage"],
)
@pytest.mark.parametrize("order", ["FBFB", "FRFR"])
def test_passes_that_the_config_contradicts_or_leaves_open_have_no_numbers(stated: RunConfig, order: str) -> None:
    """What they are part of stays known."""
    assert differences(label(without_numbers(passes(order)), stated)) == []


def test_without_a_config_runs_of_forward_passes_show_the_layers() -> None:
    assert differences(label(passes("FBFB"))) == []
    assert differences(label(passes("FRFR"))) == []
    # A stage of a pipeline runs two micro-batches before the first goes back: the shortest run is one.
    assert differences(label(passes("FFBFBB"))) == []


def test_runs_of_no_common_length_show_none() -> None:
    uneven = [*passes("FB", layers=3)[:-1], *passes("FB", layers=2)]
    found = label(without_numbers(uneven))
    assert differences(found) == []


@pytest.mark.parametrize("thread", [None, 1], ids=["unknown", "one"])
@pytest.mark.parametrize(("table", "back"), [(MOE, MOE_BACK), (DENSE, DENSE_BACK)], ids=["moe", "dense"])
def test_the_order_on_the_device_gives_the_same_numbers(table: str, back: str, thread: int | None) -> None:
    """Threads were not recorded, or one launches everything."""
    for order in ("FBFB", "FRFR", "FFBB"):
        assert differences(label(in_one_thread(passes(order, 2, table, back), thread), config(2, 2))) == [], order
