"""Ranks of two runs are refused by what their steps hold, and ranks of one run never are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import polars as pl
import pytest

from three_walls.lib.errors import InputError
from three_walls.step.find_steps import StepSource
from three_walls.step.ranks.matched_ranks import refuse_other_work
from three_walls.step.step_tables import STEPS
from three_walls.trace.identity import Rank

MS = 1_000_000
LAYERS = {"attention": 96, "ep_all_to_all": 192, "all_reduce": 4}

Counts = dict[str, int]


def refuse(
    lengths: Sequence[Sequence[int]],
    counts: Sequence[Sequence[Counts]],
    *,
    has_stages: bool = False,
    meetings: Sequence[bool] = (),
) -> None:
    """Judges ranks by the lengths of their kept steps in ms, and by how many operations of each category they hold.

    ``meetings``: for each collective of all ranks, whether they meet in it.
    """
    calls = [
        (instance, rank, True, 10 * instance, 10 * instance + 5)
        if meets or not rank
        else (instance, rank, True, 10 * instance + 6, 10 * instance + 9)
        for instance, meets in enumerate(meetings)
        for rank in range(len(lengths))
    ]
    steps, operations = [], []
    for rank, (of_rank, counts_of_rank) in enumerate(zip(lengths, counts, strict=True)):
        start = 0
        for step, (length, held) in enumerate(zip(of_rank, counts_of_rank, strict=True)):
            steps.append((rank, step, start, start + length * MS, True, ""))
            operations += [(rank, start + n, start + n + 1, kind) for kind, count in held.items() for n in range(count)]
            start += length * MS
    refuse_other_work(
        pl.DataFrame(operations, schema=["rank_index", "start_ns", "end_ns", "category"], orient="row"),
        pl.DataFrame(steps, schema=STEPS, orient="row"),
        dict.fromkeys(range(len(lengths)), StepSource.TRAINING_STEP),
        pl.DataFrame(
            calls, schema=["instance", "rank_index", "kept", "common_start_ns", "common_end_ns"], orient="row"
        ),
        [Rank(rank, rank, "environment", 0, 0, None, None, f"rank{rank}.sqlite") for rank in range(len(lengths))],
        has_stages=has_stages,
    )


def test_ranks_whose_every_step_is_longer_are_of_another_run() -> None:
    with pytest.raises(InputError, match=r"rank0\.sqlite and rank1\.sqlite: .*400\.0 ms in the first and 600\.0 ms"):
        refuse([[390, 400], [600, 650]], [[LAYERS] * 2] * 2)


@pytest.mark.parametrize("lengths", [[[400, 410], [405, 900]], [[400, 400], [480, 490]], [[400, 410], [5000]]])
def test_a_long_step_or_a_drifting_host_is_no_other_run(lengths: list[list[int]]) -> None:
    refuse(lengths, [[LAYERS] * len(of_rank) for of_rank in lengths])


def test_ranks_of_other_steps_that_do_not_meet_are_of_another_run() -> None:
    with pytest.raises(InputError, match=r"400\.0 ms in the first and 480\.0 ms in the second, and 1 of 4 collectives"):
        refuse([[400], [480]], [[LAYERS]] * 2, meetings=[True, False, False, False])


@pytest.mark.parametrize(
    ("lengths", "meetings"),
    [
        pytest.param([[400], [480]], [True, True, True, False], id="a step that a profiler makes longer"),
        pytest.param([[400], [450]], [False] * 4, id="other steps of a host that drifts"),
        pytest.param([[400], [480]], [], id="ranks that nothing compares"),
    ],
)
def test_ranks_that_meet_or_step_alike_are_not_refused(lengths: list[list[int]], meetings: list[bool]) -> None:
    refuse(lengths, [[LAYERS]] * 2, meetings=meetings)


@pytest.mark.parametrize(
    ("category", "other", "words"),
    [
        ("attention", 100, "96 attention kernels in the first and 100 in the second"),
        ("ep_all_to_all", 0, "192 token exchanges in the first and 0 in the second"),
        ("quantize", 700, "0 casts to FP8 in the first and 700 in the second"),
        ("all_reduce", 9, "4 collectives other than token exchanges in the first and 9 in the second"),
    ],
)
def test_ranks_of_other_layers_or_kernels_are_of_another_run(category: str, other: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        refuse([[400, 400]] * 2, [[LAYERS] * 2, [LAYERS | {category: other}] * 2])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param([LAYERS] * 2, [LAYERS, LAYERS | {"attention": 90}], id="a step that lost events"),
        pytest.param([LAYERS] * 2, [LAYERS | {"attention": 95}] * 2, id="one kernel lost in each step"),
        pytest.param([LAYERS] * 2, [LAYERS | {"attention": 50}], id="a single step that may be cut off"),
        pytest.param([LAYERS] * 2, [LAYERS | {"all_reduce": 7}] * 2, id="a rank that logs more"),
        pytest.param([LAYERS | {"quantize": 710}] * 2, [LAYERS | {"quantize": 760}] * 2, id="casts of other weights"),
        pytest.param(
            [LAYERS | {"pipeline_p2p": 8}] * 2, [{"attention": 64, "pipeline_p2p": 8}] * 2, id="uneven stages"
        ),
    ],
)
def test_ranks_of_one_run_that_differ_are_not_refused(first: list[Counts], second: list[Counts]) -> None:
    refuse([[400] * len(first), [400] * len(second)], [first, second])


@pytest.mark.parametrize("has_stages", [True, False])
def test_stages_are_known_by_the_configuration_too(has_stages: bool) -> None:
    with nullcontext() if has_stages else pytest.raises(InputError, match="attention"):
        refuse([[400, 400]] * 2, [[LAYERS] * 2, [{"attention": 64}] * 2], has_stages=has_stages)
