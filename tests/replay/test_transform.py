"""What each kind of change does to a step small enough to check by head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.replay.built_steps import US, Step
from tests.replay.small_graphs import GraphBuilder
from tests.trace_builder import GEMM, POINTWISE, SEND_RECV, TraceBuilder
from three_walls.layers.labels import LABELS
from three_walls.replay import replay_thresholds
from three_walls.replay.predictor import PauseCost
from three_walls.replay.step_graph import StepGraph, replay
from three_walls.replay.transform_graph import (
    find_graph_nodes,
    select_operations,
    transform,
)
from three_walls.replay.transformation import Action, Level, Selection, Transformation
from three_walls.tables.prediction_intervals import Levels

TWICE = Transformation(Action.MICRO_BATCH, factor=2)


def same(value: float) -> Levels:
    return Levels(value, value, value)


def step_us(graph: StepGraph, *changes: Transformation, level: Level = Level.LIKELY) -> float:
    return round(replay(graph, transform(graph, graph.work, changes, level)).longest_ns / US, 3)


def about(us: float) -> object:
    """Within what the launch takes with which the step begins, and which is before it."""
    return pytest.approx(us, abs=3)


def labelled(graph: StepGraph, **columns: list[object]) -> StepGraph:
    types = {**graph.operations.schema, **LABELS}
    if "part" in columns:
        columns = {"operator": [None] * graph.operations.height, **columns}
    labels = {name: pl.Series(values, dtype=types.get(name)) for name, values in columns.items()}
    return replace(graph, operations=graph.operations.with_columns(**labels))


def launch_bound(tmp_path: Path) -> StepGraph:
    """Four short kernels, each launched 20 us after the one before: the host is the limit."""
    step = Step()
    for place, name in enumerate((GEMM, POINTWISE, POINTWISE, GEMM)):
        step.run(110 + 20 * place, 115 + 20 * place, launched=105 + 20 * place, name=name)
    return step.graph_between(tmp_path, 110, 400)


def device_bound(tmp_path: Path) -> StepGraph:
    """Four kernels of 40 us, launched 5 us apart."""
    step = Step()
    for place, name in enumerate((GEMM, POINTWISE, POINTWISE, GEMM)):
        step.run(110 + 41 * place, 150 + 41 * place, launched=105 + 5 * place, name=name)
    return step.graph_between(tmp_path, 110, 400)


def two_ranks(tmp_path: Path, first_us: int, second_us: int) -> StepGraph:
    """One kernel each."""
    first, second = Step(), Step(process=TraceBuilder.process + (1 << 24), device=0)
    first.run(110, 110 + first_us, launched=105, name=GEMM)
    second.run(110, 110 + second_us, launched=105, name=GEMM)
    return first.graph_between(tmp_path, 110, 400, second)


GEMMS, POINTWISE_KERNELS = Selection(categories=("gemms",)), Selection(categories=("elementwise",))


@pytest.fixture
def kernels_that_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose time grows with the samples alone."""
    monkeypatch.setattr(replay_thresholds, "LEAST_KERNEL_NS", 0)


def test_inner_layers_are_neither_the_first_nor_the_last(tmp_path: Path) -> None:
    graph = labelled(device_bound(tmp_path), layer=[0, 1, 2, None])
    inner = Selection(inner_layers=True)
    assert select_operations(graph, inner).tolist() == [False, True, False, False]
    assert not select_operations(labelled(graph, layer=[0, 0, 1, 1]), inner).any()
    assert not select_operations(device_bound(tmp_path), inner).any()  # layers that are not known match nothing


def test_scaling_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    graph = device_bound(tmp_path)
    assert step_us(graph) == step_us(graph, Transformation(Action.SCALE, Selection(("attention",)), same(0))) == 163


def test_shorter_kernels_shorten_a_step_that_is_bound_by_the_device(tmp_path: Path) -> None:
    assert step_us(device_bound(tmp_path), Transformation(Action.SCALE, GEMMS, same(0.5))) == 163 - 40


def test_shorter_kernels_do_not_shorten_a_step_that_is_bound_by_launches(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    assert step_us(graph) == 65
    assert step_us(graph, Transformation(Action.SCALE, POINTWISE_KERNELS, same(0.5))) == 65


def test_the_levels_of_a_parameter_order_the_predictions(tmp_path: Path) -> None:
    graph, change = device_bound(tmp_path), Transformation(Action.SCALE, GEMMS, Levels(0.9, 0.5, 0.1))
    low, likely, high = (step_us(graph, change, level=level) for level in Level)
    assert (low, likely) == (155, 123)
    assert 83 < high < likely  # the second kernel now waits for its launch


def test_added_kernels_cost_launches_where_the_host_is_the_limit(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    # The two GEMMs wait for one more launch each. It takes what the step's other launches take, 20 us.
    cast = Transformation(Action.SCALE, GEMMS, same(0.5), added_kernels=same(1), added_time=same(0.1))
    assert step_us(graph, cast) == 65 + 2 * 20 - 5 + 2.5 + 2.5  # at the end the cast, and half of the last GEMM


def test_host_time_added_to_each_launch_delays_what_the_host_holds_up_and_no_device_that_is_behind(
    tmp_path: Path,
) -> None:
    graph = launch_bound(tmp_path)
    cast = Transformation(Action.SCALE, GEMMS, added_launch_us=same(5))
    assert step_us(graph, cast) == pytest.approx(step_us(graph) + 2 * 5)
    assert step_us(device_bound(tmp_path), cast) < step_us(device_bound(tmp_path)) + 2 * 5


def test_added_kernels_take_their_share_of_the_device_where_that_is_the_limit(tmp_path: Path) -> None:
    graph = device_bound(tmp_path)
    halved = Transformation(Action.SCALE, GEMMS, same(0.5))
    assert step_us(graph, replace(halved, added_time=same(0.25))) == 163 - 2 * 20 + 2 * 10
    assert (
        step_us(graph, replace(halved, added_time=same(0.75))) == 163 - 2 * 20 + 2 * 30
    )  # casts cost more than GEMMs win


def test_kernels_that_do_next_to_nothing_take_time_too(tmp_path: Path) -> None:
    graph = device_bound(tmp_path)
    unfused = Transformation(Action.SCALE, GEMMS, added_time=same(0.0), added_kernels=same(2))
    assert step_us(graph, unfused) == 163 + 2 * 2 * 2.5
    assert step_us(graph, replace(unfused, added_kernels=same(0))) == 163


def test_kernels_added_to_a_cuda_graph_need_no_launch(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    first = graph.call_of[0]
    in_graph = replace(graph, call_of=np.full_like(graph.call_of, first))
    cast = Transformation(Action.SCALE, GEMMS, added_kernels=same(1))
    work = transform(in_graph, in_graph.work, (cast,), Level.LIKELY)
    assert (work.host_segment_ns == in_graph.host_segment_ns).all()
    assert (work.duration_ns - in_graph.duration_ns).tolist() == [2500, 0, 0, 2500]


def test_fusing_removes_launches_and_the_host_time_between_them(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    # The third launch goes, with the 19 us of host time before it: the fourth follows 20 us after the second.
    assert step_us(graph, Transformation(Action.FUSE, POINTWISE_KERNELS)) == 45


def test_fusing_puts_all_the_work_into_the_launches_that_remain(tmp_path: Path) -> None:
    graph = device_bound(tmp_path)
    assert step_us(graph, Transformation(Action.FUSE, POINTWISE_KERNELS, same(0.5))) == 40 + 1 + 40 + 1 + 40
    assert step_us(graph, Transformation(Action.FUSE, POINTWISE_KERNELS, launches=2)) == 163


def test_a_launch_of_other_work_ends_a_run_that_could_be_fused(tmp_path: Path) -> None:
    assert step_us(launch_bound(tmp_path), Transformation(Action.FUSE, GEMMS)) == 65


def test_a_fused_kernel_that_is_known_takes_a_part_of_the_host_time_that_it_replaces(tmp_path: Path) -> None:
    graph = labelled(launch_bound(tmp_path), fused_kernel=[None, 1, 1, None])
    # 20 us lie between the two launches. The 20 us before the first of them are not theirs.
    for host, expected in ((0.0, 45), (0.5, 55), (1.0, 65)):
        assert step_us(graph, Transformation(Action.FUSE, POINTWISE_KERNELS, host=same(host))) == expected


def test_what_different_kernels_take_over_stays_apart(tmp_path: Path) -> None:
    graph = labelled(launch_bound(tmp_path), fused_kernel=[None, 1, 2, None])
    assert step_us(graph, Transformation(Action.FUSE, POINTWISE_KERNELS, host=same(0))) == 65
    busy = labelled(device_bound(tmp_path), fused_kernel=[None, 1, 2, None])
    assert step_us(busy, Transformation(Action.FUSE, POINTWISE_KERNELS, same(0.5))) == 163 - 40


def test_a_kernel_that_ends_before_its_launch_returns_does_not_cut_what_is_fused(tmp_path: Path) -> None:
    step = Step()
    for place, name in enumerate((GEMM, POINTWISE, POINTWISE, POINTWISE, GEMM)):
        begin = 105 + 20 * place
        step.kernel(name, (begin + 3) * US, (begin + 4) * US)
        step.call("cudaLaunchKernel_v7000", begin, begin + (6 if place == 2 else 1), step.correlation)
    graph = labelled(step.graph_between(tmp_path, 105, 400), fused_kernel=[None, 1, 1, 1, None])
    fused = Transformation(Action.FUSE, POINTWISE_KERNELS, host=same(0))
    assert step_us(graph) == 84
    assert step_us(graph, fused) == 84 - 40


def test_a_graph_is_not_cut_where_fused_kernels_would_be(tmp_path: Path) -> None:
    graph = labelled(launch_bound(tmp_path), fused_kernel=[None, 1, 2, None])
    assert step_us(graph, Transformation(Action.GRAPH, Selection(), overhead_us=same(1))) == 4 * 5 + 3


def test_a_graph_launches_a_run_at_once_and_keeps_its_kernels(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    everything = Transformation(Action.GRAPH, Selection(), overhead_us=same(1))
    assert step_us(graph, everything) == 4 * 5 + 3  # the kernels one after the other, 1 us apart


GRAPHED_GEMMS = Transformation(Action.GRAPH, GEMMS, overhead_us=same(1))


def test_copies_of_a_graphs_inputs_cost_launches_where_the_host_is_the_limit(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    fused = replace(GRAPHED_GEMMS, select=POINTWISE_KERNELS)
    assert step_us(graph, fused) == 65 - 20
    assert step_us(graph, replace(fused, added_kernels=same(2))) == 65 - 20 + 2 * 20


def test_copies_of_a_graphs_inputs_take_device_time_where_that_is_the_limit(tmp_path: Path) -> None:
    graph = device_bound(tmp_path)
    fused = replace(GRAPHED_GEMMS, select=POINTWISE_KERNELS)
    assert step_us(graph, fused) == 163
    assert step_us(graph, replace(fused, added_kernels=same(2))) == 163 + 2 * 2.5
    assert step_us(graph, replace(fused, added_time=same(0.25))) == 163 + 0.25 * (40 + 40)


def test_inputs_are_copied_once_for_all_runs_of_one_pass(tmp_path: Path) -> None:
    graph, copying = device_bound(tmp_path), replace(GRAPHED_GEMMS, added_kernels=same(2))
    same_pass: dict[str, list[object]] = {"direction": ["forward"] * 4, "micro_batch": [0] * 4}
    assert step_us(labelled(graph, layer=[0] * 4, **same_pass), copying) == 163 + 2 * 2.5
    assert step_us(labelled(graph, layer=[0, 0, 1, 1], **same_pass), copying) == 163 + 2 * 2 * 2.5
    assert step_us(labelled(graph, layer=[None] * 4, **same_pass), copying) == 163 + 2 * 2 * 2.5
    assert step_us(graph, copying) == 163 + 2 * 2 * 2.5  # passes are not known: each run is a graph


def test_what_synchronizes_stays_outside_of_graphs(tmp_path: Path) -> None:
    step = Step().run(110, 115, launched=105).run(130, 135, launched=125)
    step.call("cudaDeviceSynchronize_v3020", 128, 137).run(150, 155, launched=145).run(170, 175, launched=165)
    graph = step.graph_between(tmp_path, 110, 400)
    # Two graphs: the second one is launched 8 us after the call that waited for the first.
    change = Transformation(Action.GRAPH, Selection(), overhead_us=same(1))
    assert step_us(graph) == 65
    assert step_us(graph, change) == 2 * 5 + 1 + 2 + 8 + 5 + 2 * 5 + 1


def graph_of_three() -> StepGraph:
    """A kernel that is launched by itself, 100 ns a launch, and a CUDA graph of three kernels."""
    step = GraphBuilder()
    step.operation(step.call(0, 100), 10, category="elementwise")
    graph = step.call(100, 100)
    for category in ("gemm", "elementwise", "gemm"):
        step.operation(graph, 10, category=category)
    return step.build()


UNGRAPHED = Transformation(Action.UNGRAPH, added_host_us=same(0.1))


def step_ns(graph: StepGraph, *changes: Transformation) -> int:
    return replay(graph, transform(graph, graph.work, changes, Level.LIKELY)).longest_ns


def test_kernels_of_a_graph_that_is_taken_apart_are_launched_one_by_one() -> None:
    graph = graph_of_three()
    assert step_ns(graph) == 200 + 3 * 10
    assert step_ns(graph, UNGRAPHED) == 200 + 2 * 100 + 10
    assert step_ns(graph, replace(UNGRAPHED, added_host_us=same(0.2))) == 200 + 2 * 200 + 10


def test_kernels_that_stay_in_a_graph_follow_those_taken_out_of_it() -> None:
    assert step_ns(graph_of_three(), replace(UNGRAPHED, select=GEMMS)) == 200 + 100 + 2 * 10


def test_kernels_outside_of_graphs_are_launched_as_before() -> None:
    assert find_graph_nodes(graph_of_three(), Selection()).tolist() == [False, True, True, True]
    assert step_ns(graph_of_three(), replace(UNGRAPHED, select=Selection(categories=("norm",)))) == 230


@pytest.mark.slow
def test_communication_and_compute_that_are_exposed_take_turns(tmp_path: Path) -> None:
    exposed = Transformation(Action.EXPOSE, Selection(categories=("communication",)))
    beside = Step().run(110, 150, launched=105, name=SEND_RECV, stream=9).run(112, 142, launched=110, name=GEMM)
    assert step_us(beside.graph_between(tmp_path, 110, 400)) == 40
    assert step_us(beside.graph_between(tmp_path, 110, 400), exposed) == 40 + 30
    after = Step().run(110, 140, launched=105, name=GEMM).run(112, 152, launched=110, name=SEND_RECV, stream=9)
    assert step_us(after.graph_between(tmp_path, 110, 400), exposed) == 30 + 40


def test_exposing_what_is_exposed_already_changes_nothing(tmp_path: Path) -> None:
    graph = awaited_exchange(tmp_path)
    assert step_us(graph) == step_us(graph, Transformation(Action.EXPOSE, Selection(categories=("communication",))))
    assert step_us(graph) == step_us(graph, Transformation(Action.EXPOSE, Selection(categories=("pipeline_p2p",))))


def test_layers_are_told_apart_by_what_runs_in_them(tmp_path: Path) -> None:
    graph = labelled(launch_bound(tmp_path), layer=[0, 0, 1, None])
    assert select_operations(graph, Selection(layers_with=("gemm",))).tolist() == [True, True, False, False]
    assert not select_operations(launch_bound(tmp_path), Selection(layers_with=("gemm",))).any()


def test_communication_that_is_hidden_holds_no_compute_up(tmp_path: Path) -> None:
    step = Step().run(110, 150, launched=105, name=SEND_RECV, stream=9)
    step.record_event(1, 9, called=107 * US, sync=11).wait_event(1, 7, called=108 * US, sync=11)
    step.run(151, 191, launched=110, name=GEMM)
    graph = step.graph_between(tmp_path, 110, 400)
    selection = Selection(categories=("communication",))
    assert step_us(graph) == 81
    assert step_us(graph, Transformation(Action.HIDE, selection)) == 5 + 40  # it is launched 5 us later
    assert step_us(graph, Transformation(Action.HIDE, selection, share=same(0.5))) == 81 - 20
    slower = Transformation(Action.HIDE, selection, slowdown=same(1.5))
    assert 1.5 * 40 < step_us(graph, slower) < 81


def test_compute_covers_no_more_of_a_longer_transfer_than_it_takes(tmp_path: Path) -> None:
    graph = awaited_exchange(tmp_path)
    assert step_us(graph) == 70
    assert step_us(graph, HIDDEN) == 70 - 29
    assert step_us(graph, replace(HIDDEN, share=same(0.5))) == 70 - 14.5


HIDDEN = Transformation(Action.HIDE, Selection(categories=("communication",)))


def awaited_exchange(tmp_path: Path) -> StepGraph:
    """An exchange of 40 us, and a GEMM of another stream that waits for it."""
    step = Step().run(110, 150, launched=105, name=SEND_RECV, stream=9)
    step.record_event(1, 9, called=107 * US, sync=11).wait_event(1, 7, called=108 * US, sync=11)
    step.run(151, 180, launched=110, name=GEMM)
    return step.graph_between(tmp_path, 110, 400)


def test_the_first_forward_and_the_last_backward_pass_have_nothing_to_hide_under(tmp_path: Path) -> None:
    graph = awaited_exchange(tmp_path)
    first = labelled(graph, direction=["forward"] * 2, micro_batch=[0, 1])
    assert step_us(first, HIDDEN) == 70
    second = labelled(graph, direction=["forward"] * 2, micro_batch=[1, 1])
    assert step_us(second, HIDDEN) == 70 - 29


def test_passes_of_unknown_micro_batches_may_all_be_hidden_under(tmp_path: Path) -> None:
    graph = awaited_exchange(tmp_path)
    assert step_us(labelled(graph, direction=["forward"] * 2, micro_batch=[None, None]), HIDDEN) == 70 - 29


def test_a_host_without_synchronizing_calls_runs_ahead(tmp_path: Path) -> None:
    step = Step().run(110, 200, launched=105).call("cudaDeviceSynchronize_v3020", 110, 205).run(215, 230, launched=210)
    graph = step.graph_between(tmp_path, 110, 400)
    assert step_us(graph) == 120
    assert step_us(graph, Transformation(Action.UNWAIT)) == 90 + 1 + 15


def test_no_call_waits_for_work_that_is_gone(tmp_path: Path) -> None:
    """The host waits for a short kernel that runs after a long one; then it launches another long one."""
    step = Step().run(110, 200, launched=105).run(201, 203, launched=110, name=POINTWISE)
    graph = (
        step.call("cudaDeviceSynchronize_v3020", 115, 206).run(215, 230, launched=210).graph_between(tmp_path, 110, 400)
    )
    gone = Transformation(Action.SCALE, POINTWISE_KERNELS, same(0), same(0))
    assert step_us(graph) == 120
    assert step_us(graph, gone) == 90 + 1 + 15  # launched while the long kernel still runs


def test_a_call_waits_for_work_that_is_shorter_or_launched_all_the_same(tmp_path: Path) -> None:
    step = Step().run(110, 200, launched=105).run(201, 203, launched=110, name=POINTWISE)
    graph = (
        step.call("cudaDeviceSynchronize_v3020", 115, 206).run(215, 230, launched=210).graph_between(tmp_path, 110, 400)
    )
    for time, host in ((0.5, 0.0), (0.0, 1.0)):
        assert step_us(graph, Transformation(Action.SCALE, POINTWISE_KERNELS, same(time), same(host))) > 110


def test_recompute_adds_forward_work_to_the_backward_pass(tmp_path: Path) -> None:
    graph = labelled(device_bound(tmp_path), direction=["forward", "forward", "backward", "backward"])
    change = Transformation(Action.REPEAT, Selection(categories=("gemms",)), host=same(0))
    assert step_us(graph, change) == 163 + 40


CHECKPOINTED = Transformation(Action.REPEAT, GEMMS, same(0), same(0), added_host_us=same(7))


def half_backward(graph: StepGraph, *layers: int | None) -> StepGraph:
    """``graph`` of four operations, of which two are forward and two backward, of the ``layers`` of a micro-batch."""
    directions: list[object] = ["forward", "forward", "backward", "backward"]
    return labelled(graph, direction=directions, micro_batch=[0] * 4, layer=list(layers))


def test_recompute_costs_the_host_for_every_layer_and_pass(tmp_path: Path) -> None:
    one, two = half_backward(launch_bound(tmp_path), 0, 0, 0, 0), half_backward(launch_bound(tmp_path), 0, 1, 1, 0)
    assert step_us(one, CHECKPOINTED) == 65 + 7
    assert step_us(two, CHECKPOINTED) == 65 + 7  # the other layer repeats no GEMM
    assert step_us(two, replace(CHECKPOINTED, select=Selection())) == 65 + 2 * 7
    assert step_us(one, CHECKPOINTED, CHECKPOINTED) == 65 + 2 * 7  # two modules are two checkpoints


def test_the_hosts_cost_of_recompute_is_hidden_where_the_device_is_the_limit(tmp_path: Path) -> None:
    assert step_us(half_backward(device_bound(tmp_path), 0, 0, 0, 0), CHECKPOINTED) == 163


def test_without_known_layers_recompute_costs_its_launches_alone(tmp_path: Path) -> None:
    assert step_us(half_backward(launch_bound(tmp_path), None, None, None, None), CHECKPOINTED) == 65


TRITON = Transformation(Action.SCALE, POINTWISE_KERNELS, host=same(0), added_host_us=same(7))


def test_a_fused_kernel_costs_the_host_its_own_time_for_every_pass_that_has_one(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    one, two = half_backward(graph, 0, 0, 0, 0), half_backward(graph, 0, 0, 1, 1)
    same_pass = labelled(one, direction=["forward"] * 4)
    assert step_us(same_pass, replace(TRITON, added_host_us=same(0))) == 65 - 40
    assert step_us(same_pass, TRITON) == 65 - 40 + 7
    assert step_us(two, TRITON) == 65 - 40 + 2 * 7
    assert step_us(half_backward(graph, None, None, None, None), TRITON) == 65 - 40  # no pass is known
    assert step_us(half_backward(device_bound(tmp_path), 0, 0, 0, 0), TRITON) == 163  # the device is the limit


def test_a_selection_may_follow_recomputed_work(tmp_path: Path) -> None:
    directions = ["backward", "recompute", "recompute", "backward"]
    graph = labelled(launch_bound(tmp_path), direction=directions, part=["expert", "expert", "projection", "expert"])

    def after(*work: str) -> list[bool]:
        return select_operations(graph, Selection(follows_recompute=work)).tolist()

    assert after("projection") == [False, False, False, True]
    assert after("expert") == [False] * 4  # what follows it is recomputed itself
    assert after("expert", "projection") == [False, False, False, True]
    assert not select_operations(launch_bound(tmp_path), Selection(follows_recompute=("expert",))).any()


def test_a_selection_may_lie_between_gemms_of_a_pass(tmp_path: Path) -> None:
    graph = labelled(
        launch_bound(tmp_path),
        direction=["forward"] * 4,
        micro_batch=[0] * 4,
        layer=[0] * 4,
        module=["attention"] * 4,
    )  # a GEMM, two pointwise kernels, a GEMM

    def between(after: int, before: int) -> list[bool]:
        return select_operations(graph, Selection(after_gemm=after, before_gemm=before)).tolist()

    assert between(1, 2) == [False, True, True, False]
    assert between(1, 0) == [False, True, True, True]
    assert between(0, 2) == [True, True, True, False]
    assert between(2, 0) == [False] * 4
    assert not select_operations(launch_bound(tmp_path), Selection(after_gemm=1)).any()  # no pass is known


def test_no_fusion_and_no_graph_takes_a_pause_of_the_process_away(tmp_path: Path) -> None:
    graph = launch_bound(tmp_path)
    silent_ns = graph.silent_ns.copy()
    silent_ns[4] = 15 * US  # of the 20 us before the third kernel
    paused = replace(graph, silent_ns=silent_ns)
    for change in (
        Transformation(Action.SCALE, POINTWISE_KERNELS, host=same(0)),
        Transformation(Action.FUSE, POINTWISE_KERNELS),
        Transformation(Action.GRAPH, POINTWISE_KERNELS),
    ):
        assert step_us(paused, change) - step_us(graph, change) == 15
    assert step_us(paused) == step_us(graph)


def test_recompute_repeats_the_time_that_concurrent_streams_cover(tmp_path: Path) -> None:
    step = Step()
    step.run(110, 150, launched=105, name=GEMM)
    for stream in (7, 9):  # the backward pass runs on two streams at once
        step.run(151, 191, launched=106 + stream, name=POINTWISE, stream=stream)
    graph = labelled(step.graph_between(tmp_path, 110, 400), direction=["forward", "backward", "backward"])
    change = Transformation(Action.REPEAT, Selection(categories=("gemms",)), host=same(0))
    assert step_us(graph) == 81
    assert step_us(graph, change) == 81 + 40


def test_balanced_ranks_do_the_mean_of_their_work(tmp_path: Path) -> None:
    graph = two_ranks(tmp_path, 40, 80)
    balanced = Transformation(Action.BALANCE, Selection(modules=("experts",)))
    experts = labelled(graph, module=["experts"] * 2, layer=[0, 0])
    assert step_us(experts) == 80
    assert step_us(experts, balanced) == 60
    assert step_us(labelled(graph, module=["attention"] * 2, layer=[0, 0]), balanced) == 80
    assert step_us(labelled(graph, module=["experts"] * 2, layer=[0, 1]), balanced) == 40  # each alone in its layer


def test_twice_the_micro_batch_halves_the_passes_and_their_launches(tmp_path: Path) -> None:
    graph = labelled(launch_bound(tmp_path), micro_batch=[0, 0, 1, 1])
    assert step_us(graph, Transformation(Action.MICRO_BATCH, factor=2)) == about(30 + 10)


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_the_host_may_take_longer_for_a_pass_of_more_samples(tmp_path: Path) -> None:
    graph = labelled(launch_bound(tmp_path), micro_batch=[0, 0, 1, 1])
    assert step_us(graph, Transformation(Action.MICRO_BATCH, factor=2, host=same(1.5))) == about(45 + 10)
    assert step_us(graph, Transformation(Action.MICRO_BATCH, factor=0.5)) == 2 * 60 + 5
    assert step_us(graph, Transformation(Action.MICRO_BATCH, factor=0.5, host=same(0.75))) == 2 * 45 + 5
    assert step_us(graph) == 60 + 5


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_passes_that_stay_take_the_host_what_all_take_on_average(tmp_path: Path) -> None:
    step = Step()
    for launched_us in (105, 125, 165, 225):
        step.run(launched_us + 5, launched_us + 10, launched=launched_us)
    graph = labelled(step.graph_between(tmp_path, 110, 400), micro_batch=[0, 0, 1, 1])
    assert step_us(graph) == 20 + 100 + 5
    assert step_us(graph, Transformation(Action.MICRO_BATCH, factor=2)) == about(120 / 2 + 10)


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_every_doubling_of_the_micro_batch_compounds(tmp_path: Path) -> None:
    step = Step()
    for place in range(4):
        step.run(110 + 41 * place, 150 + 41 * place, launched=105 + 5 * place)
    busy = labelled(step.graph_between(tmp_path, 110, 400), micro_batch=[0, 1, 2, 3])
    for factor, busy_us in ((1, 163), (2, 2 * 60 + 1), (4, 160 * 0.75**2)):
        assert step_us(busy, Transformation(Action.MICRO_BATCH, factor=factor, time=same(0.75))) == busy_us
    hosted = labelled(launch_bound(tmp_path), micro_batch=[0, 0, 1, 1])
    for less, hosted_us in ((0.5, 2 * 60 * 0.75), (0.25, 4 * 60 * 0.75**2)):
        assert step_us(hosted, Transformation(Action.MICRO_BATCH, factor=less, host=same(0.75))) == hosted_us + 5


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_three_times_the_micro_batch_lies_between_one_doubling_and_two(tmp_path: Path) -> None:
    graph = labelled(device_bound(tmp_path), micro_batch=[0, 0, 1, 1])
    change = Transformation(Action.MICRO_BATCH, factor=3, time=same(0.75))
    assert step_us(graph, change) == pytest.approx(2 * 3 * 40 * 0.75 ** np.log2(3) + 1, abs=0.01)


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_twice_the_micro_batch_does_the_same_work_on_the_device(tmp_path: Path) -> None:
    graph = labelled(device_bound(tmp_path), micro_batch=[0, 0, 1, 1])
    assert step_us(graph, Transformation(Action.MICRO_BATCH, factor=2)) == 2 * 40 + 1 + 2 * 40


def test_the_start_of_a_kernel_takes_as_long_for_more_samples(tmp_path: Path) -> None:
    """1.5 us of 40, and all of a kernel that does next to nothing. Transfers take twice as long for twice the bytes."""
    for name, length_us, twice_ns in ((GEMM, 40, 78_500), (GEMM, 1, 1_000), (SEND_RECV, 40, 80_000)):
        step = Step().run(110, 110 + length_us, launched=105, name=name)
        step.run(160, 160 + length_us, launched=106, name=name)
        graph = labelled(step.graph_between(tmp_path, 110, 400), micro_batch=[0, 1])
        assert transform(graph, graph.work, [TWICE], Level.LIKELY).duration_ns.tolist() == [twice_ns, 0]


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_twice_the_micro_batch_keeps_the_first_passes_and_the_time_of_all(tmp_path: Path) -> None:
    """The passes left are those of a schedule with fewer of them: no backward pass comes between two forward ones."""
    step = Step()
    for place, length_us in enumerate((10, 20, 40, 80)):
        step.run(110 + 100 * place, 110 + 100 * place + length_us, launched=105 + place)
    graph = labelled(step.graph_between(tmp_path, 110, 600), micro_batch=[0, 1, 2, 3])
    after = transform(graph, graph.work, [TWICE], Level.LIKELY)
    assert after.duration_ns.tolist() == [50 * US, 100 * US, 0, 0]


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_without_a_pipeline_the_last_backward_pass_stays_beside_the_reduction_of_gradients(tmp_path: Path) -> None:
    """Its place says when the reduction begins: after the first kernel of two, not after both."""
    step = Step()
    for place in range(8):
        step.run(110 + 50 * place, 150 + 50 * place, launched=105 + place)
    step.run(470, 490, launched=112, stream=28, name=SEND_RECV)
    labels = {
        "micro_batch": [0, 0, 0, 0, 1, 1, 1, 1, 1],
        "direction": ["forward", "forward", "backward", "backward"] * 2 + ["backward"],
        "layer": [0, 1, 1, 0] * 2 + [1],
    }
    graph = labelled(step.graph_between(tmp_path, 110, 800), **labels)
    after = transform(graph, graph.work, [TWICE], Level.LIKELY)
    assert (after.duration_ns[:8] // US).tolist() == [80, 80, 0, 0, 0, 0, 80, 80]


def test_passes_that_stay_wait_for_ranks_that_were_not_captured_as_long_as_all_together(tmp_path: Path) -> None:
    step = Step()
    for place in range(4):
        step.run(110 + 100 * place, 150 + 100 * place, launched=105 + place, name=SEND_RECV)
    graph = labelled(step.graph_between(tmp_path, 110, 600), micro_batch=[0, 1, 2, 3])
    waits_ns = np.array([20, 10, 6, 4]) * US
    waiting = replace(graph.work, wait_ns=waits_ns)
    after = transform(graph, waiting, [TWICE], Level.LIKELY)
    assert after.wait_ns.sum() == waits_ns.sum()
    assert (after.wait_ns[2:] == 0).all()


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_a_kernel_that_is_slower_in_one_pass_alone_is_not_slower_for_all_samples(tmp_path: Path) -> None:
    step = Step()
    for place, length_us in enumerate((10, 10, 10, 50)):  # the last one beside a transfer
        step.run(110 + 100 * place, 110 + 100 * place + length_us, launched=105 + place)
    labels = {"micro_batch": [0, 0, 1, 1], "direction": ["backward"] * 4, "layer": [1, 0, 1, 0]}
    graph = labelled(step.graph_between(tmp_path, 110, 600), **labels)
    after = transform(graph, graph.work, [TWICE], Level.LIKELY)
    assert (after.duration_ns // US).tolist() == [0, 0, 20, 60]


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_what_every_pass_adds_to_the_gradients_takes_its_own_mean(tmp_path: Path) -> None:
    step = Step()
    for place, length_us in enumerate((10, 60, 20, 20)):
        step.run(110 + 100 * place, 110 + 100 * place + length_us, launched=105 + place, name=POINTWISE)
    graph = labelled(
        step.graph_between(tmp_path, 110, 600),
        micro_batch=[0, 0, 1, 1],
        part=[None] * 4,
        operator=[None, "wgrad_accumulation", None, "wgrad_accumulation"],
    )
    after = transform(graph, graph.work, [TWICE], Level.LIKELY)
    assert after.duration_ns.tolist() == [30 * US, 40 * US, 0, 0]


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_kernels_gain_by_more_samples_and_transfers_do_not(tmp_path: Path) -> None:
    change = Transformation(Action.MICRO_BATCH, factor=2, time=same(0.75))
    for name, length_us in ((GEMM, 60), (SEND_RECV, 80)):
        step = Step().run(110, 150, launched=105, name=name).run(151, 191, launched=106, name=name)
        graph = labelled(step.graph_between(tmp_path, 110, 400), micro_batch=[0, 1])
        assert step_us(graph, change) == length_us


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_what_every_pass_adds_to_the_gradients_takes_as_long_for_more_samples(tmp_path: Path) -> None:
    step = Step()
    for place, name in enumerate((GEMM, POINTWISE, GEMM, POINTWISE)):
        step.run(110 + 41 * place, 150 + 41 * place, launched=105 + 5 * place, name=name)
    graph = labelled(
        step.graph_between(tmp_path, 110, 400),
        micro_batch=[0, 0, 1, 1],
        part=[None] * 4,
        operator=[None, "wgrad_accumulation", None, "wgrad_accumulation"],
    )
    assert step_us(graph, TWICE) == 2 * 40 + 1 + 40


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_the_gradients_are_reduced_once_a_step_whatever_the_passes(tmp_path: Path) -> None:
    graph = labelled(device_bound(tmp_path), micro_batch=[0, 0, 1, 1], part=[None, None, None, "gradient_reduction"])
    assert step_us(graph, TWICE) == (2 * 40 + 40) + 1 + 40 + 1  # what the passes take together stays


@pytest.mark.usefixtures("kernels_that_start_at_once")
def test_what_only_the_last_pass_does_stays(tmp_path: Path) -> None:
    graph = labelled(device_bound(tmp_path), micro_batch=[0, 1, 1, 1])  # a GEMM, two pointwise kernels, a GEMM
    assert step_us(graph, TWICE) == 2 * 40 + 1 + 40 + 1 + 40


def test_a_slow_rank_is_healed_to_the_pace_of_its_peers(tmp_path: Path) -> None:
    graph = two_ranks(tmp_path, 40, 80)
    healed = Transformation(Action.HEAL, Selection(ranks=(1,)))
    assert step_us(graph) == 80
    assert step_us(labelled(graph, rank_number=[0, 1]), healed) == 40


@pytest.mark.parametrize(
    ("cost", "by_rank", "left"),
    [(50, (50, 50), 50), (100, (50, 50), 50), (50, (0, 50), 0), (20, (0, 50), 0), (60, (20, 50), 20)],
)
def test_healing_a_rank_takes_what_it_pauses_alone(
    tmp_path: Path, cost: int, by_rank: tuple[int, int], left: int
) -> None:
    graph = labelled(two_ranks(tmp_path, 40, 80), rank_number=[0, 1])
    pauses = PauseCost(cost, dict(enumerate(by_rank)))
    assert pauses.after(graph, ()) == cost
    assert pauses.after(graph, (Transformation(Action.HEAL, Selection(ranks=(1,))),)) == left


def test_collectives_that_crawl_beside_another_process_are_healed_with_its_rank(tmp_path: Path) -> None:
    first, second = Step(), Step(process=TraceBuilder.process + (1 << 24), device=0)
    for step in (first, second):
        step.run(110, 150, launched=105, name=SEND_RECV)
    graph = replace(
        labelled(first.graph_between(tmp_path, 110, 400, second), rank_number=[0, 1]),
        ready_ns=np.array([10 * US, 10 * US]),
    )
    healed = Transformation(Action.HEAL, Selection(ranks=(1,)))
    held = replace(graph, held_ns=np.array([0, US]))
    assert step_us(graph, healed) == 40  # no other process is known: a slow clock slows no transfer
    assert step_us(held, healed) == 10


def test_slow_hosts_lose_a_share_of_what_they_take_more_than_the_fastest(tmp_path: Path) -> None:
    fast, slow = Step(), Step(process=TraceBuilder.process + (1 << 24), device=0)
    for place in range(4):
        fast.run(110 + 20 * place, 115 + 20 * place, launched=105 + 20 * place)
        slow.run(110 + 40 * place, 115 + 40 * place, launched=105 + 40 * place)
    graph = fast.graph_between(tmp_path, 110, 400, slow)
    now, evened = step_us(graph), step_us(graph, Transformation(Action.EVEN_HOSTS))
    halfway = step_us(graph, Transformation(Action.EVEN_HOSTS, share=same(0.5)))
    assert evened < 0.6 * now
    assert halfway == pytest.approx((now + evened) / 2, abs=1)
    assert step_us(launch_bound(tmp_path), Transformation(Action.EVEN_HOSTS)) == step_us(launch_bound(tmp_path))


def test_a_selection_by_a_label_that_nobody_found_selects_nothing(tmp_path: Path) -> None:
    graph = device_bound(tmp_path)
    assert select_operations(graph, Selection()).all()
    assert not select_operations(graph, Selection(work=("rope",))).any()
    assert not select_operations(graph, Selection(kernels="nvjet")).any()
    assert select_operations(labelled(graph, name=[GEMM, "a", "b", GEMM]), Selection(kernels="nvjet")).sum() == 2
