"""Which iterations count as the run's own speed. Lengths in ms, as the logs of real runs print them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from three_walls.log.steady_steps import (
    ProfiledRange,
    Role,
    classify_iterations,
    find_moments,
    find_other_steps,
    is_within,
    match_captured_steps,
    number_starts,
)
from three_walls.log.training_log import LogEvent, LogIteration

SIX_TO_NINE = ProfiledRange(6, 9)


def lines(*lengths: float, every: int = 1, batch: int = 8) -> list[LogIteration]:
    return [
        LogIteration((place + 1) * every, round(ms * 1_000_000), global_batch_size=batch)
        for place, ms in enumerate(lengths)
    ]


def roles(iterations: list[LogIteration], profiled: ProfiledRange | None = None, *events: LogEvent) -> list[str]:
    return [role.value for role in classify_iterations(iterations, events, profiled)]


def test_warm_up_is_what_lies_above_the_plateau_however_long_it_is() -> None:
    assert roles(lines(9936, 5193, 405, 395, 377.3, 377)) == ["warm-up"] * 4 + ["steady"] * 2
    assert roles(lines(300, 232, 230, 231, 229, 230)) == ["warm-up"] + ["steady"] * 5
    assert roles(lines(230, 232, 230, 231, 229, 230)) == ["steady"] * 6


def test_the_profilers_range_and_its_stop_are_found_by_number() -> None:
    found = roles(lines(900, 377, 377, 376, 377, 377, 2432, 821, 726, 4638, 377), SIX_TO_NINE)
    assert found == ["warm-up"] + ["steady"] * 5 + ["profiled"] * 3 + ["profiler's stop", "steady"]


def ns(*lengths: float | None) -> list[int | None]:
    return [None if ms is None else round(ms * 1_000_000) for ms in lengths]


def test_captured_steps_are_found_in_the_log_by_their_lengths() -> None:
    """The first captured step is cut off: its iteration holds the profiler's start, the one after them its stop."""
    log = lines(3463, 557, 552, 545, 555, 556, 1049.9, 600.1, 613.9, 4599)
    found = match_captured_steps(log, ns(None, 599.4, 616.0))
    assert found == ProfiledRange(6, 9)
    assert roles(log, found)[5:] == ["steady", "profiled", "profiled", "profiled", "profiler's stop"]


def test_captured_steps_that_fit_nowhere_or_in_several_places_are_not_found() -> None:
    log = lines(900, 377, 377, 376, 377, 821, 726, 4638)
    assert match_captured_steps(log, ns(None, 700.0, 800.0)) is None
    assert match_captured_steps(log, ns(377.0, 377.0)) is None
    assert match_captured_steps(log, ns(None, 821.0)) is None  # one length may agree by chance


def is_of_another_moment(minute: int, *printed: tuple[int, int, int]) -> bool:
    """Whether a capture in ``minute`` is not of 6 to 9; ``printed``: run, iteration and minute of each line."""
    log = [LogIteration(number, 1, run=run, printed_at=f"2026-07-25 10:{at:02}:00") for run, number, at in printed]
    at_ns = 1_784_973_600_000_000_000 + minute * 60_000_000_000
    moments = find_moments(log, SIX_TO_NINE)
    return bool(moments) and not any(is_within((at_ns, at_ns), moment, 5_000_000_000) for moment in moments)


def test_a_capture_is_of_the_run_that_printed_the_profiled_iterations_then() -> None:
    once = [(0, 5, 1), (0, 6, 2), (0, 9, 4), (0, 10, 6)]
    assert [is_of_another_moment(minute, *once) for minute in (1, 3, 5, 18)] == [True, False, True, False]
    again = [(1, number, at + 7) for _, number, at in once]
    assert [is_of_another_moment(minute, *once, *again) for minute in (3, 5, 10, 12)] == [False, True, False, True]


def test_an_iteration_that_is_far_longer_than_its_captured_step_is_its_own_where_it_was_printed_then() -> None:
    """As a host waits for a batch behind the last captured step."""
    log, captured = lines(900, *[500] * 5, 477, 474, 565, 3700), ns(477.1, 473.6, 485.8)
    assert find_other_steps(log, SIX_TO_NINE, captured) == (ns(477, 474, 565), captured)
    assert find_other_steps(log, SIX_TO_NINE, captured, is_then=True) is None
    assert find_other_steps(log, SIX_TO_NINE, ns(677.1, 673.6, 685.8), is_then=True) is not None


def test_iterations_that_a_log_lacks_took_as_long_as_its_longest() -> None:
    cut = [(0, 4, 1), (0, 5, 2)]  # a minute each, so that 9 is printed until minute 6
    assert [is_of_another_moment(minute, *cut) for minute in (1, 3, 6, 7, 16)] == [True, False, False, True, True]
    begun_late = [(0, 10, 6), (0, 11, 7)]
    assert [is_of_another_moment(minute, *begun_late) for minute in (1, 2, 6, 8)] == [True, False, False, True]
    assert is_of_another_moment(12, (0, 5, 1), (1, 5, 2), (1, 6, 2), (1, 9, 4))


def starts(*printed: tuple[int, int], events: tuple[LogEvent, ...] = ()) -> list[int]:
    """The starts of lines of a second each; ``printed``: iteration and second of each."""
    log = [LogIteration(number, 1_000_000_000, printed_at=f"2026-07-25 10:00:{at:02}") for number, at in printed]
    return [line.run for line in number_starts(log, events)]


def test_training_is_started_again_where_numbers_go_back_or_much_time_passes() -> None:
    assert starts((1, 0), (2, 1), (3, 2)) == [0, 0, 0]
    assert starts((1, 0), (2, 1), (2, 2), (3, 3)) == [0, 0, 1, 1]
    assert starts((1, 0), (2, 20), (3, 21)) == [0, 1, 1]
    assert starts((1, 0), (2, 20), (3, 21), events=(LogEvent("evaluation", "", 1),)) == [0, 0, 0]
    assert starts((10, 0), (20, 10), (30, 20)) == [0, 0, 0]  # every tenth is printed


def test_captured_steps_of_a_host_bound_run_are_found_where_each_is_cut_elsewhere() -> None:
    log = lines(3463, 557, 552, 545, 555, 556, 1049.9, 600.1, 613.9, 4599)
    assert match_captured_steps(log, ns(None, 588.0, 627.0)) == ProfiledRange(6, 9)
    assert match_captured_steps(log, ns(None, 588.0, 640.0)) is None  # 1.2% longer together


def test_a_slow_iteration_in_the_middle_is_an_outlier_not_warm_up() -> None:
    assert roles(lines(500, 260, 1536, 262, 261, 260)) == ["warm-up", "steady", "outlier", "steady", "steady", "steady"]


def test_a_run_that_jitters_keeps_its_spread() -> None:
    assert roles(lines(9782, 889, 1059, 1051, 1034, 992, 870))[1:] == ["steady"] * 6


def test_the_iteration_after_an_evaluation_or_a_checkpoint_is_set_aside() -> None:
    events = (LogEvent("evaluation", "", 2), LogEvent("checkpoint", "", 4), LogEvent("dispatcher", "", 5))
    assert roles(lines(144, 144, 143, 142, 150, 142), None, *events) == [
        "steady",
        "steady",
        "after evaluation or checkpoint",
        "steady",
        "after evaluation or checkpoint",
        "steady",
    ]


def test_a_line_that_averages_over_many_iterations_covers_the_profiled_ones() -> None:
    ten_each = lines(900, 240, 231, 230, every=10)
    assert roles(ten_each, ProfiledRange(10, 12)) == ["warm-up", "profiled", "steady", "steady"]
    assert roles(ten_each, ProfiledRange(3, 5)) == ["profiled", "warm-up", "steady", "steady"]
    assert roles(lines(231, every=100), ProfiledRange(10, 12)) == ["profiled"]


def test_each_run_of_a_log_warms_up_by_itself() -> None:
    assert roles([*lines(900, 231, 230, 231), *lines(800, 230, 231, 230)]) == (["warm-up"] + ["steady"] * 3) * 2


def test_training_that_goes_on_from_a_checkpoint_warms_up_again() -> None:
    before = lines(900, 231, 230, 231)
    again = [
        LogIteration(5 + place, ms * 1_000_000, global_batch_size=8, run=1) for place, ms in enumerate((800, 230, 231))
    ]
    assert roles([*before, *again]) == ["warm-up", *["steady"] * 3, "warm-up", "steady", "steady"]
    same_run = [LogIteration(iteration.iteration, iteration.elapsed_ns, global_batch_size=8) for iteration in again]
    assert roles([*before, *same_run])[4] == "outlier"


def test_skipped_updates_and_other_batch_sizes_are_set_aside() -> None:
    found = lines(231, 230, 231, 230)
    odd = [LogIteration(5, 200_000_000, global_batch_size=8, skipped_count=1), *lines(115, batch=4)]
    assert roles([*found, *odd]) == ["steady"] * 4 + ["skipped or NaN update", "other batch size"]


def test_nothing_is_steady_in_an_empty_log() -> None:
    assert roles([]) == []


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 10**10), st.sampled_from([None, 8])), max_size=30),
    st.sampled_from([None, SIX_TO_NINE]),
)
def test_profiled_iterations_are_never_steady(
    lines: list[tuple[int, int, int | None]], at: ProfiledRange | None
) -> None:
    found = [LogIteration(number, ns, global_batch_size=batch) for number, ns, batch in lines]
    for line, role in zip(found, classify_iterations(found, (), at), strict=True):
        assert role is not Role.STEADY or at is None or not at.start < line.iteration <= at.end + 1
