"""Predicted gains against measured ones, on the base traces that the repository holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.paths import REPOSITORY
from three_walls.tables.prediction_intervals import Levels, MeasuredGain, Regime, StepLimits, prediction_intervals
from tools import accuracy
from tools.accuracy import (
    Base,
    Comparison,
    MeasuredEdit,
    Score,
    correlate_ranks,
    count_best_first,
    count_edits,
    describe_baselines,
    describe_repeats,
    describe_scores,
    describe_steps,
    find_base,
    is_current,
    learn_step_ratio,
    leave_bases_out,
    list_untold,
    read_edits,
    take_bases_as_edits,
)


def test_ranks_correlate_with_themselves_and_against_their_reverse() -> None:
    assert correlate_ranks([(1.0, 10.0), (2.0, 20.0), (3.0, 40.0)]) == 1.0
    assert correlate_ranks([(1.0, 40.0), (2.0, 20.0), (3.0, 10.0)]) == -1.0
    assert correlate_ranks([(1.0, 1.0), (2.0, 2.0)]) is None
    assert correlate_ranks([(1.0, 10.0), (1.0, 10.0), (3.0, 40.0)]) == pytest.approx(1.0)


def test_predictions_that_are_all_alike_order_nothing() -> None:
    assert correlate_ranks([(0.0, 10.0), (0.0, 20.0), (0.0, 40.0)]) is None


def _compared(base: str, likely: float, measured: float, half_width: float = 0.0, name: str = "") -> Comparison:
    edit = MeasuredEdit(
        name or f"{base} {likely}", base, (), heals=False, base_ms=100, edited_ms=100 * (1 - measured), noise_ms=1,
        same_run=True, is_set_aside=False,
    )  # fmt: skip
    gain = MeasuredGain(Levels(likely, likely, likely), measured, StepLimits(0.0, 0.0), StepLimits(0.0, 0.0))
    printed = Levels(likely - half_width, likely, likely + half_width)
    return Comparison(edit, gain, 0.01, printed, effects=("fused-rope",), gpus=2)


def test_the_best_prediction_must_measure_best_within_its_noise() -> None:
    right = [_compared("a", 0.3, 0.2), _compared("a", 0.1, 0.205)]
    wrong = [_compared("b", 0.3, 0.2), _compared("b", 0.1, 0.22)]
    alone = [_compared("c", 0.3, -0.2)]
    assert count_best_first([*right, *wrong, *alone]) == (1, 2)


def test_the_noise_of_a_base_is_what_one_more_run_differs_from_its_mean_by() -> None:
    edit = replace(_compared("a", 0.1, 0.1).edit, base_runs_ms=(90.0, 100.0, 110.0))
    assert edit.spread_ms == pytest.approx(10 * (4 / 3) ** 0.5)
    assert replace(edit, base_runs_ms=(90.0,)).spread_ms == 0


def test_every_edit_counts_whatever_it_measured() -> None:
    score = Score.of([_compared("a", 0.1, 0.11), _compared("a", 0.1, 0.12), _compared("b", 0.1, -0.1)])
    assert (score.count, score.inside, score.inside_with_noise, score.harmful) == (3, 0, 1, 1)
    assert score.mean_error == pytest.approx((0.01 + 0.02 + 0.2) / 3)


def test_the_gates_ask_for_coverage_width_and_rank_correlation() -> None:
    right = [_compared("a", gain, gain, 0.05) for gain in (0.1, 0.2, 0.3)]
    assert Score.of(right).is_enough
    assert not Score.of([replace(each, printed=Levels(0.5, 0.6, 0.6)) for each in right]).is_enough
    assert not Score.of([_compared("a", gain, gain, 0.08) for gain in (0.1, 0.2, 0.3)]).is_enough
    assert not Score.of([_compared("a", 0.3 - gain, gain, 0.05) for gain in (0.1, 0.15, 0.2)]).is_enough


def test_a_range_is_learnt_without_the_base_that_it_is_tested_on() -> None:
    wide, narrow = _compared("a", 0.1, 0.3), _compared("b", 0.1, 0.1)
    of_a, of_b = leave_bases_out([wide, narrow])
    assert of_a.width == 0
    assert of_b.printed.high == pytest.approx(0.3)


def test_a_table_lists_the_scores_of_all_edits_and_of_groups() -> None:
    edits = [_compared("a", gain, gain, 0.05) for gain in (0.1, 0.2, 0.3)]
    lines = list(describe_scores(edits))
    assert "| all | 3 of 3 (100%) | 3 of 3 | 10.0% | 1.00 | 0.0 points | 0 |" in lines
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")][1:] == [
        "| all", "| bases that held still (3% of noise at most)", "| device-bound runs", "| 2 GPUs", "| fused-rope",
    ]  # fmt: skip
    edits = [replace(each, edit=replace(each.edit, base_runs_ms=(95, 105, 95))) for each in edits]
    rows = [line for line in describe_scores(edits) if line.startswith("| unchanged bases, taken as edits")]
    assert [row.split(" | ")[0].partition("edits")[2] for row in rows] == ["", ", device-bound runs"]
    assert all(row.endswith(" | 10.5 points | |") for row in rows)  # 1 - 105 / 95


def test_an_unchanged_base_is_an_edit_between_the_runs_beside_it() -> None:
    edits = [_compared("a", 0.1, 0.1, name=name) for name in ("rope", "loss")]
    [alone] = take_bases_as_edits(
        replace(edit, edit=replace(edit.edit, base_runs_ms=(100, 110, 120))) for edit in edits
    )
    assert (alone.likely, alone.measured) == (0.0, 0.0)  # drift alone is none of it
    [jumps] = take_bases_as_edits([replace(edits[0], edit=replace(edits[0].edit, base_runs_ms=(90, 110, 110)))])
    assert jumps.measured == pytest.approx(-0.1)
    assert take_bases_as_edits([replace(edits[0], edit=replace(edits[0].edit, base_runs_ms=(90, 110)))]) == []


def test_a_base_run_again_is_held_against_the_mean_of_its_other_runs() -> None:
    runs = [(100, 104, 112), (100,), ()]
    edits = [_compared(name, 0.1, 0.1) for name in "abc"]
    again = [replace(each, edit=replace(each.edit, base_runs_ms=ms)) for each, ms in zip(edits, runs, strict=True)]
    told = "within 5% of the mean of its other runs in 1 of 3 runs (device-bound 1 of 3)"  # 104 beside 106
    assert told in describe_repeats([*again, again[0]])  # another edit of the same session


def test_the_readme_states_what_the_edits_give() -> None:
    edits = [_compared("a", 0.1, 0.1, 0.05), _compared("a", 0.1, 0.2, 0.05)]
    told = (
        "Of 3 measured edits 2 are predicted, and 1 of these (50%) is inside; the median range is 10.0% of the\n"
        "step wide, off by 5.0 points."
    )
    assert list_untold(told, edits, 3) == []
    assert list_untold(told.replace("10.0%", "5.0%"), edits, 3) == ["the median range is 10.0% of the step wide"]
    assert list_untold(told, edits, 2) == ["Of 2 measured edits 2 are predicted, and 1 of these (50%)"]
    again = [replace(each, edit=replace(each.edit, base_runs_ms=(90, 110, 110))) for each in edits]
    assert list_untold(told, again, 3) == ["10.0 where a run of the unchanged base"]


def test_two_baselines_need_no_trace() -> None:
    edits = [_compared(base, 0.1, gain, name=f"rope, {base}") for base, gain in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    by_median, by_nothing = describe_baselines(edits)
    assert "mean error 10.0 points" in by_median  # guesses 0.25, 0.2 and 0.15
    again = [*edits, _compared("a", 0.1, 0.1, name="rope, a once more")]
    by_median, _ = describe_baselines(again)
    assert "mean error 15.0 points" in by_median  # guesses 0.25, 0.1, 0.1 and 0.25: none by its own base
    assert "mean error 20.0 points; rank correlation none" in by_nothing


def test_the_shipped_intervals_are_stale_once_the_pairs_give_others() -> None:
    counts = count_edits([_compared("a", 0.1, 0.1)])
    assert counts[Regime.DEVICE] == {"fused-rope": 1}
    learnt = replace(prediction_intervals(), quantile=1.0, step_ratio=2.0, edits=counts)
    assert is_current(replace(learnt, quantile=1.01), learnt)
    assert not is_current(replace(learnt, quantile=1.05), learnt)
    assert not is_current(replace(learnt, step_ratio=2.2), learnt)
    assert not is_current(replace(learnt, edits={}), learnt)


def test_logs_are_inside_ranges_of_the_step_that_other_traces_give() -> None:
    bases = [Base(str(number), "", off=0.04, step_score=number) for number in (1.0, 2.0, 3.0)]
    assert learn_step_ratio(bases) == 3.0
    told = describe_steps([*bases, Base("unknown", "")])
    assert told.endswith("within 5% of the log on 3 of 3 traces; the log inside the range on 2")
    logged = describe_steps([Base("still", "", 0.0, 1.0, (0.01, -0.02)), Base("drifts", "", 0.0, 1.0, (0.2, 0.04))])
    assert "steps of one log within 5% of its others: 75% (2 logs)" in logged


@pytest.mark.skipif(not (REPOSITORY / "benchmarks" / "traces").is_dir(), reason="an sdist leaves base traces out")
def test_every_measured_edit_has_a_base_trace_in_the_repository() -> None:
    assert [edit.base for edit in read_edits() if find_base(edit.base) is None] == []


def test_the_page_on_measured_pairs_has_the_figures_of_the_data() -> None:
    page = (REPOSITORY / "docs" / "measured-pairs.md").read_text().replace(",", "")
    groups = accuracy.read_groups()
    missing = [run for runs in groups.values() for run in runs if f"| {run['step_ms']} |" not in page]
    assert missing == []
