"""Which step stands for the run."""

from __future__ import annotations

import polars as pl

from three_walls.step.find_steps import STEPS, list_median_steps
from three_walls.step.step_tables import PAUSES


def choose(steps: list[tuple[object, ...]], *pauses: tuple[int, int, int]) -> dict[int, int]:
    """The chosen step by rank. ``pauses``: of which rank, in which step, and for how many ns."""
    rows = [{"rank_index": rank, "step": step, "start_ns": 0, "end_ns": ns} for rank, step, ns in pauses]
    found = pl.DataFrame(rows, schema=PAUSES)
    return dict(list_median_steps(pl.DataFrame(steps, schema=STEPS, orient="row"), found).rows())


def of_lengths(*lengths_ns: int, rank: int = 0) -> list[tuple[object, ...]]:
    """Kept steps, one after the other."""
    ends = [sum(lengths_ns[: place + 1]) for place in range(len(lengths_ns))]
    return [(rank, step, end - ns, end, True, "") for step, (end, ns) in enumerate(zip(ends, lengths_ns, strict=True))]


def test_the_median_step_is_the_lower_of_two_and_dropped_ones_do_not_count() -> None:
    rows = [
        (0, 0, 0, 900, False, ""),
        (0, 1, 900, 1000, True, ""),
        (0, 2, 1000, 1120, True, ""),
        (1, 0, 0, 300, True, ""),
        (1, 1, 300, 500, True, ""),
        (1, 2, 500, 900, True, ""),
    ]
    assert choose(rows) == {0: 1, 1: 0}


def test_of_steps_without_pauses_the_one_nearest_to_the_median_without_pauses_stands_for_all() -> None:
    lengths = (140, 150, 100, 170, 200)
    assert choose(of_lengths(*lengths)) == {0: 1}
    assert choose(of_lengths(140, 270, 100, 170, 200), (0, 1, 120)) == {0: 0}
    both = [*of_lengths(140, 270, 100, 170, 200), *of_lengths(140, 270, 100, 170, 200, rank=1)]
    assert choose(both, (1, 1, 120)) == {0: 0, 1: 0}  # its peer waits for it


def test_where_hosts_pause_in_all_steps_lengths_count_without_the_pauses() -> None:
    every = [(0, 1, 100), (0, 2, 50), (0, 3, 10)]
    assert choose(of_lengths(600, 203, 152, 111), *every) == {0: 2}  # 103, 102 and 101 without; the first is not known


def test_a_step_without_a_pause_that_is_far_off_stands_for_none() -> None:
    pauses = [(0, 0, 10), (0, 1, 60)]
    assert choose(of_lengths(460, 490, 520), *pauses) == {0: 0}  # 450 and 430 without


def test_the_first_step_stands_for_a_second_one_with_a_pause() -> None:
    assert choose(of_lengths(110, 200), (0, 1, 100)) == {0: 0}
