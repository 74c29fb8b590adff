"""Predicted gains against measured ones, on the base traces that the repository holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.paths import REPOSITORY
from tools import accuracy
from tools.accuracy import (
    Base,
    Comparison,
    JudgedWall,
    MeasuredEdit,
    correlate_ranks,
    count_best_first,
    describe_bare_score,
    describe_gpu_groups,
    describe_neighbour_score,
    describe_whole_score,
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


def test_the_score_without_any_noise_is_told_too() -> None:
    near = replace(_compared("a", 0.1, 0.11), noise=0.02)
    assert near.is_inside
    assert "all 0 of 1 inside" in describe_bare_score([near])
    assert "all 1 of 1 inside" in describe_bare_score([replace(near, high=0.11)])


def test_the_score_of_all_edits_leaves_none_out_for_its_noise() -> None:
    lost = replace(_compared("a", 0.1, 0.11), noise=0.2)
    assert lost.is_lost_in_noise
    assert "all 1 of 2 inside" in describe_whole_score([lost, replace(lost, high=0.11)])


def test_a_range_is_narrow_beside_the_step_or_beside_its_gain() -> None:
    def span(likely: float, low: float, high: float) -> Comparison:
        return replace(_compared("a", likely, likely), low=low, high=high)

    assert span(0.01, -0.02, 0.04).is_narrow
    assert not span(0.01, -0.03, 0.04).is_narrow
    assert span(0.4, 0.3, 0.5).is_narrow
    assert not span(0.4, 0.3, 0.55).is_narrow


def test_pairs_of_eight_gpus_are_scored_by_themselves() -> None:
    pair = [replace(_compared("pair", likely, measured), gpus=2) for likely, measured in ((0.1, 0.1), (0.2, 0.2))]
    eight = [replace(_compared("eight", likely, measured), gpus=8) for likely, measured in ((0.1, 0.1), (0.3, 0.1))]
    walls = [JudgedWall("pair", 2, "memory", "memory"), JudgedWall("eight", 8, "memory", "communication")]
    bases = [Base("pair", 2, 0.001, 0.0, ""), Base("eight", 8, 0.002, 0.004, ""), Base("other", 8, None, 0.001, "")]
    assert list(describe_gpu_groups([*pair, *eight], walls, bases)) == [
        "1 or 2 GPUs: inside 100% of 2 edits; median width 0.0% of the step, 100% narrow; rank correlation unknown;\n"
        "  best predicted edit measured best: 1 of 1 traces with several edits; "
        "predicted to help by more than 3% and slower: 0",
        "  wall as known: 1 of 1 traces; replay error at most 0.10% on 1 traces; "
        "unclassified at most 0.00% on 1 traces",
        "4 GPUs: none measured",
        "8 GPUs or more: inside 50% of 2 edits; median width 0.0% of the step, 100% narrow; rank correlation unknown;\n"
        "  best predicted edit measured best: 1 of 1 traces with several edits; "
        "predicted to help by more than 3% and slower: 0",
        "  wall as known: 0 of 1 traces; replay error at most 0.20% on 1 traces, unknown on 1; "
        "unclassified at most 0.40% on 2 traces",
    ]


def test_a_trace_without_measured_edits_and_one_without_a_number_of_gpus_are_told_apart_from_none() -> None:
    bases = [Base("eight", 8, 0.002, 0.004, ""), Base("somewhere", None, None, None, "")]
    assert list(describe_gpu_groups([], [], bases))[2:] == [
        "8 GPUs or more: no edit measured",
        "  no known wall; replay error at most 0.20% on 1 traces; unclassified at most 0.40% on 1 traces",
        "GPUs not known: no edit measured",
        "  no known wall; replay error unknown; unclassified unknown",
    ]


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
