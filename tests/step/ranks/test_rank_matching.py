"""Calls of several ranks are matched only where order shows which are the same collective."""

from __future__ import annotations

from pathlib import Path

import pytest
from lockstep import COMMUNICATION_STREAM, EPOCH, MS, US, Behaviour, simulate
from trace_builder import ALL_GATHER, SEND_RECV, TraceBuilder, merge

from tests.measured import measure
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.report.report import Report
from three_walls.step.ranks.align_clocks import NOT_RESOLVABLE
from three_walls.step.ranks.rank_groups import find_members
from three_walls.trace.identity import Rank

pytestmark = pytest.mark.slow

USUAL = Behaviour()


def rows(report: Report) -> list[tuple[str, int, int | None, int | None]]:
    return [(wait.communication_class, wait.rank, wait.wait_ns, wait.transfer_ns) for wait in report.waits]


def test_one_report_of_all_ranks_gives_the_waits_of_separate_ones(tmp_path: Path) -> None:
    run = simulate([USUAL, Behaviour(slow=1.3), USUAL])
    separate = simulate([USUAL, Behaviour(slow=1.3), USUAL])
    apart = measure(separate.write(tmp_path / "apart"))
    together = measure(merge(tmp_path / "merged.sqlite", *run.builders))
    assert rows(apart) == rows(together)
    assert (
        [straggler.rank for straggler in apart.stragglers]
        == [straggler.rank for straggler in together.stragglers]
        == [1]
    )


def test_unequal_numbers_of_calls_are_not_compared(tmp_path: Path) -> None:
    run = simulate([USUAL, Behaviour(slow=1.4)])
    middle = run.own(0, run.now[0] // 2)
    run.builders[0].kernel(SEND_RECV, middle, middle + US, stream=COMMUNICATION_STREAM)
    report = measure(run.write(tmp_path))
    exchange = [wait for wait in report.waits if wait.communication_class == "ep_all_to_all"]
    assert len(exchange) == 2
    assert not any(wait.resolved for wait in exchange)
    assert all("the number of calls differs between ranks (6 to 7)" in wait.note for wait in exchange)
    assert all(wait.awaited_rank is None for wait in exchange)
    assert all(wait.resolved for wait in report.waits if wait.communication_class == "all_reduce")


def test_calls_that_do_not_overlap_are_no_collective(tmp_path: Path) -> None:
    run = simulate([USUAL, USUAL])
    for order in range(1, 5):
        at = run.now[0] * order // 5
        for rank in (0, 1):
            start = run.own(rank, at + rank * 2 * MS)
            run.builders[rank].kernel(ALL_GATHER, start, start + US, stream=30)
    report = measure(run.write(tmp_path))
    gathers = [wait for wait in report.waits if wait.communication_class == "ep_control"]
    assert len(gathers) == 2
    assert not any(wait.resolved for wait in gathers)


def test_ranks_without_communication_are_compared_in_nothing(tmp_path: Path) -> None:
    paths = [
        TraceBuilder(session_start_ns=EPOCH, host=host).steps(4, MS).write(tmp_path / f"{host}.sqlite")
        for host in ("node0", "node1")
    ]
    report = measure(paths)
    assert (report.waits, report.stragglers) == ((), ())
    assert report.alignment is not None
    assert report.alignment.method == NOT_RESOLVABLE
    assert measure(paths[:1]).alignment is None


def config(world: int, **sizes: int) -> RunConfig:
    names = {
        "tp": "tensor_model",
        "cp": "context",
        "pp": "pipeline_model",
        "ep": "expert_model",
        "etp": "expert_tensor",
    }
    values = {
        f"{name}_parallel_size": ConfigValue(sizes.get(short, 1), "command line") for short, name in names.items()
    }
    return RunConfig(values=values, environment={"WORLD_SIZE": ConfigValue(str(world), "environment")})


def groups_of(name: str, world: int, **sizes: int) -> list[list[int]]:
    ranks = [Rank(n, n, "environment", n, 0, None, None, "") for n in range(world)]
    members = find_members(ranks, config(world, **sizes))
    of_class = members.filter(members["class"] == name)
    return [part["rank_index"].to_list() for _, part in of_class.group_by("group", maintain_order=True)]


def test_expert_groups_are_megatrons() -> None:
    # Order tp-cp-ep-dp-pp: expert-tensor parallelism changes fastest, pipeline stages slowest.
    assert groups_of("ep_all_to_all", 8, ep=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups_of("ep_all_to_all", 8, tp=2, etp=2, ep=2) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups_of("ep_dispatch_combine", 8, tp=2, etp=2, ep=2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups_of("ep_all_to_all", 8, pp=2, ep=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_data_parallel_groups_are_megatrons() -> None:
    assert groups_of("all_reduce", 8, tp=2, pp=2) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups_of("reduce_scatter", 8, cp=2) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_class_is_sure_only_where_all_its_groups_are_one() -> None:
    ranks = [Rank(n, n, "environment", n, 0, None, None, "") for n in range(4)]
    for ep, sure in ((4, True), (2, False)):
        members = find_members(ranks, config(4, ep=ep))
        assert members.filter(members["class"] == "all_gather")["sure"].unique().to_list() == [sure]
        assert members.filter(members["class"] == "ep_all_to_all")["sure"].unique().to_list() == [True]
