"""Predicted gains against measured ones, on the base traces that the repository holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.paths import REPOSITORY
from tools import accuracy
from tools.accuracy import (
    Comparison,
    MeasuredEdit,
    correlate_ranks,
    count_best_first,
    describe_neighbour_score,
    find_base,
    read_edits,
)


def test_ranks_correlate_with_themselves_and_against_their_reverse() -> None:
    assert correlate_ranks([(1.0, 10.0), (2.0, 20.0), (3.0, 40.0)]) == 1.0
    assert correlate_ranks([(1.0, 40.0), (2.0, 20.0), (3.0, 10.0)]) == -1.0
    assert correlate_ranks([(1.0, 1.0), (2.0, 2.0)]) is None


def _compared(base: str, likely: float, measured: float) -> Comparison:
    edit = MeasuredEdit(f"{base} {likely}", base, (), (), 100, 100 * (1 - measured), 1, True, is_set_aside=False)
    return Comparison(edit, likely, likely, likely, measured, 0.01)


def test_the_best_prediction_must_measure_best_within_its_noise() -> None:
    right = [_compared("a", 0.3, 0.2), _compared("a", 0.1, 0.205)]
    wrong = [_compared("b", 0.3, 0.2), _compared("b", 0.1, 0.22)]
    alone = [_compared("c", 0.3, -0.2)]
    assert count_best_first([*right, *wrong, *alone]) == (1, 2)


def test_the_noise_of_a_base_is_what_one_more_run_differs_from_its_mean_by() -> None:
    edit = replace(_compared("a", 0.1, 0.1).edit, base_runs_ms=(90.0, 100.0, 110.0))
    assert edit.spread_ms == pytest.approx(10 * (4 / 3) ** 0.5)
    assert replace(edit, base_runs_ms=(90.0,)).spread_ms == 0


def test_the_score_with_the_noise_of_neighbours_is_told_too() -> None:
    wide = replace(_compared("a", 0.1, 0.2), noise=0.2, neighbour_noise=0.01)
    assert wide.is_lost_in_noise
    assert "all 0 of 1 inside" in describe_neighbour_score([wide])
    assert "all 1 of 1 inside" in describe_neighbour_score([replace(wide, neighbour_noise=0.02, measured=0.115)])


@pytest.mark.skipif(not (REPOSITORY / "benchmarks" / "traces").is_dir(), reason="an sdist leaves base traces out")
def test_every_measured_edit_has_a_base_trace_in_the_repository() -> None:
    assert [edit.base for edit in read_edits() if find_base(edit.base) is None] == []


def test_a_small_change_between_bases_that_differ_more_was_not_measured() -> None:
    edit = _compared("a", 0.1, 0.1).edit
    assert Comparison(edit, 0.1, 0.1, 0.1, measured=0.1, noise=0.06).is_lost_in_noise
    assert not Comparison(edit, 0.1, 0.1, 0.1, measured=0.3, noise=0.06).is_lost_in_noise
    assert not Comparison(edit, 0.1, 0.1, 0.1, measured=0.01, noise=0.02).is_lost_in_noise  # it measured nothing


def test_the_page_on_measured_pairs_has_the_figures_of_the_data() -> None:
    page = (REPOSITORY / "docs" / "measured-pairs.md").read_text().replace(",", "")
    groups = accuracy.read_groups()
    missing = [run for runs in groups.values() for run in runs if f"| {run['step_ms']} |" not in page]
    assert missing == []
