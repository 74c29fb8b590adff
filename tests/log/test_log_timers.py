"""Megatron's timers: their forms as printed, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest
from examples import iteration, rank_timers, read
from hypothesis import given
from hypothesis import strategies as st

from three_walls.facts.fact_rows import SlowRank, TimerSummary
from three_walls.facts.log_facts import find_slow_ranks, summarize_timers
from three_walls.log.collect_log import Collector
from three_walls.log.read_log import read_text
from three_walls.log.steady_steps import Role
from three_walls.log.training_log import LogIteration, LogTimer, TimerKind, TimerPrint, TrainingLog
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig

MS = 1_000_000
EIGHT = {rank: 100.0 + rank for rank in range(8)}


def timers_of(log: TrainingLog) -> list[LogTimer]:
    return [timer for printed in log.timers for timer in printed.timers]


def test_the_shortest_and_the_longest_rank_or_the_longest_alone(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "INFO:megatron.core.timers:(min, max) time across ranks (ms):",
        "    forward-backward ...............................: (117.00, 118.25)",
        "    optimizer ......................................: (1.00, 2.",
        "max time across ranks (ms):",
        "    all-grads-sync .................................: 0.07",
        "    optimizer ......................................: 2",
    )
    assert timers_of(log) == [
        LogTimer("forward-backward", 117 * MS, 118_250_000),
        LogTimer("all-grads-sync", None, 70_000),
    ]


def test_every_rank_under_the_timers_name(tmp_path: Path) -> None:
    log = read(tmp_path, *rank_timers({"forward-compute": {0: 12.0, 1: 11.5, 10: 13.25}, "train/valid": {1: 7.0}}))
    assert timers_of(log) == [
        LogTimer("forward-compute", 11_500_000, 13_250_000, ((0, 12 * MS), (1, 11_500_000), (10, 13_250_000))),
        LogTimer("train/valid", 7 * MS, 7 * MS, ((1, 7 * MS),)),
    ]


@pytest.mark.parametrize("prefix", ["", "[default7]:", "7: ", " 7: ", "[rank7]: ", "node1: ", "[1,7]<stdout>:"])
def test_a_print_has_the_prefix_of_its_launcher(tmp_path: Path, prefix: str) -> None:
    lines = [iteration(1, 377.0), *rank_timers({"optimizer": EIGHT}), "done", iteration(2, 377.0)]
    log = read(tmp_path, *(prefix + line for line in lines))
    assert [timer.ranks_ns[7] for timer in timers_of(log)] == [(7, 107 * MS)]
    assert [printed.after and printed.after.iteration for printed in log.timers] == [1]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 18), st.sampled_from(["[rank3]:W1 warning", "W1 a: b", "  F.py:3:", ""])), max_size=15
    )
)
def test_lines_of_other_ranks_in_a_print_change_nothing(inserted: list[tuple[int, str]]) -> None:
    lines = rank_timers({"forward-compute": EIGHT, "optimizer": EIGHT})
    plain = read_lines(lines)
    for place, other in sorted(inserted, reverse=True):
        lines.insert(1 + place, other)
    assert read_lines(lines) == plain


def read_lines(lines: list[str]) -> tuple[TimerPrint, ...]:
    collector = Collector()
    read_text(["".join(f"{line}\n" for line in lines).encode()], collector, "a")
    return collector.result(("a",)).timers


def test_a_torn_heading_gives_no_timer_the_ranks_of_another(tmp_path: Path) -> None:
    lines = rank_timers({"forward-compute": EIGHT, "backward-compute": dict.fromkeys(EIGHT, 900.0), "optimizer": EIGHT})
    torn = [line.replace("  backward-compute:", "  backw[rank3]:W1121 a warning") for line in lines]
    (printed,) = read(tmp_path, *torn).timers
    assert [(timer.name, timer.max_ns) for timer in printed.timers] == [
        ("forward-compute", 107 * MS),
        ("optimizer", 107 * MS),
    ]


@pytest.mark.parametrize("torn", ["     rank  3: 10", "     rank  3: 103.0[rank1]:W1", "     rank  ", "     rank  3:"])
def test_a_torn_rank_is_left_out_and_the_others_stay(tmp_path: Path, torn: str) -> None:
    lines = rank_timers({"forward-compute": EIGHT})
    (timer,) = timers_of(read(tmp_path, *(torn if "rank  3:" in line else line for line in lines)))
    assert [rank for rank, _ in timer.ranks_ns] == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("count", [3, 40, 400])
def test_of_many_prints_a_share_from_all_over_the_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("three_walls.lib.limits.MOST_TIMER_VALUES", 100)
    timers = [(n % 2, rank_timers({"optimizer" if n % 2 else "evaluate": EIGHT})) for n in range(count)]
    lines = [line for n, (_, printed) in enumerate(timers) for line in [iteration(n + 1, 300.0), *printed]]
    log = read(tmp_path, *lines)
    kept = [printed.after.iteration for printed in log.timers if printed.after]
    assert kept == sorted(kept)
    assert len(kept) == min(count, len(kept)) <= 10
    assert {timer.name for timer in timers_of(log)} == {"optimizer", "evaluate"}
    assert max(kept) - min(kept) >= count // 2


def test_the_line_of_the_straggler_detector_is_a_timer_of_two_ranks(tmp_path: Path) -> None:
    line = (
        "INFO:megatron.core.utils:[2026-07-25 10:11:12] | MnRtt/Rnk: 345.08ms/8 | MxRtt/Rnk: 468.20ms/0 | "
        "MnPwr/Rnk: 601.00W/8 | MxPwr/Rnk: 683.00W/2 | MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: 310.00TF/8"
    )
    (timer,) = timers_of(read(tmp_path, line, line.replace("345.08ms", "ms")))
    assert timer == LogTimer("straggler-detector", 345_080_000, 468_200_000, ((0, 468_200_000), (8, 345_080_000)))


STEADY = [LogIteration(step, 300 * MS) for step in range(1, 6)]
ROLES = dict.fromkeys(STEADY, Role.STEADY)


def prints(*times: dict[int, float], name: str = "forward-compute") -> list[TimerPrint]:
    """One print per mapping of ranks to milliseconds, after one steady iteration each."""
    found = []
    for line, ms_by_rank in zip(STEADY, times, strict=False):
        ranks = tuple((rank, round(ms * MS)) for rank, ms in sorted(ms_by_rank.items()))
        values = [ns for _, ns in ranks]
        found.append(TimerPrint(line, (LogTimer(name, min(values), max(values), ranks),)))
    return found


def config_of(**settings: object) -> RunConfig:
    values = {key: ConfigValue(value, "test") for key, value in settings.items()}  # type: ignore[arg-type]
    world = {"world_size": values.pop("world_size")} if "world_size" in values else {}
    return RunConfig(values=MappingProxyType(values), sizes=MappingProxyType(world))


def slow(printed: list[TimerPrint], config: RunConfig | None = None) -> list[SlowRank]:
    return list(find_slow_ranks(printed, ROLES, config or RunConfig()))


def test_the_median_of_each_rank_is_what_counts() -> None:
    jitter = [{0: 100.0, 1: 101.0}, {0: 100.0, 1: 180.0}, {0: 102.0, 1: 99.0}]
    assert summarize_timers(prints(*jitter), ROLES) == (
        TimerSummary("forward-compute", TimerKind.WORK, 3, 100 * MS, 101 * MS, 0, 1),
    )


def test_without_ranks_the_bounds_are_medians_of_those_printed() -> None:
    bounds = [
        TimerPrint(line, (LogTimer("optimizer", low * MS, low * 2 * MS),))
        for line, low in zip(STEADY, (3, 1, 2), strict=False)
    ]
    assert summarize_timers(bounds, ROLES) == (TimerSummary("optimizer", TimerKind.STEP, 3, 2 * MS, 4 * MS),)
    longest = [TimerPrint(STEADY[0], (LogTimer("optimizer", None, 5 * MS),))]
    assert summarize_timers(longest, ROLES) == (TimerSummary("optimizer", TimerKind.STEP, 1, None, 5 * MS),)


def test_prints_after_profiled_iterations_do_not_count_unless_no_print_has_an_iteration() -> None:
    printed = prints({0: 100.0, 1: 100.0}, {0: 900.0, 1: 100.0})
    roles = {STEADY[0]: Role.STEADY, STEADY[1]: Role.PROFILED}
    (summary,) = summarize_timers(printed, roles)
    assert (summary.prints, summary.longest_ns) == (1, 100 * MS)
    assert summarize_timers(printed[1:], roles) == ()
    in_a_file_of_their_own = [TimerPrint(None, timer_print.timers) for timer_print in printed]
    assert [timer.prints for timer in summarize_timers(in_a_file_of_their_own, roles)] == [2]


def test_timers_outside_of_steps_count_wherever_they_stand() -> None:
    printed = [TimerPrint(None, (LogTimer("load-checkpoint", 1, 2),)), *prints({0: 1.0})]
    assert [(timer.name, timer.kind) for timer in summarize_timers(printed, ROLES)] == [
        ("forward-compute", TimerKind.WORK),
        ("load-checkpoint", TimerKind.OUTSIDE),
    ]


FOUR = {0: 100.0, 1: 101.0, 2: 99.0, 3: 100.0}


def test_a_rank_that_is_slow_print_after_print_is_named_with_the_fastest() -> None:
    assert slow(prints(*[FOUR | {3: 130.0}] * 3)) == [
        SlowRank(3, "forward-compute", 130 * MS, 2, 99 * MS, 100 * MS, 3, 3, None)
    ]


@pytest.mark.parametrize(
    "times",
    [
        [FOUR] * 3,
        [FOUR | {3: 109.0}] * 3,  # within what healthy ranks differ by
        [FOUR | {3: 130.0}, FOUR | {2: 130.0}, FOUR | {1: 130.0}],  # by turns
        [FOUR | {3: 130.0}],  # once
        [{0: 100.0}] * 3,  # alone
    ],
    ids=["even", "little", "by turns", "once", "alone"],
)
def test_nobody_is_named_where_nobody_stands_out(times: list[dict[int, float]]) -> None:
    assert slow(prints(*times)) == []


@pytest.mark.parametrize(
    "name", ["all-grads-sync", "forward-recv", "optimizer", "save-checkpoint", "rollout-collection"]
)
def test_a_long_exchange_blames_nobody(name: str) -> None:
    assert slow(prints(*[FOUR | {3: 500.0}] * 3, name=name)) == []


def test_stages_of_a_pipeline_are_not_compared_with_each_other() -> None:
    stages = {0: 100.0, 1: 100.0, 2: 100.0, 3: 150.0, 4: 150.0, 5: 190.0}
    config = config_of(world_size=6, pipeline_model_parallel_size=2)
    assert [(found.rank, found.fastest_rank, found.stage) for found in slow(prints(*[stages] * 3), config)] == [
        (5, 3, 1)
    ]
    assert slow(prints(*[stages] * 3), config_of(pipeline_model_parallel_size=2)) == []  # which rank is where?
    no_pipeline = config_of(pipeline_model_parallel_size=1)
    assert [(slow_rank.rank, slow_rank.stage) for slow_rank in slow(prints(*[stages] * 3), no_pipeline)] == [
        (5, None),
        (3, None),
        (4, None),
    ]


@given(st.lists(st.dictionaries(st.integers(0, 5), st.floats(0.01, 500), min_size=1), max_size=5))
def test_a_slow_rank_is_always_slower_than_the_fastest(times: list[dict[int, float]]) -> None:
    for slow_rank in slow(prints(*times)):
        assert slow_rank.ns > slow_rank.fastest_ns
        assert 0 < slow_rank.prints <= slow_rank.of_prints
