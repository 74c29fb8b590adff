"""How a comparison is worded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bridge.builders import edit
from tests.report.sample_report import MS
from tests.runs.sample_runs import make_log_run, make_run
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.text import format_saved
from three_walls.report.comparison import Judgement
from three_walls.report.comparison_report import make_sections_of
from three_walls.report.section import Note, Table, nested_blocks, plain_text
from three_walls.report.sections.compared_steps import describe_step_change
from three_walls.report.sections.history import describe_judgement
from three_walls.runs.compare_runs import compare
from three_walls.runs.step_change import measure_step_change


@pytest.mark.parametrize(
    ("after_ms", "sentence"),
    [
        (570, "1.05 times as fast (5.0% shorter): 600 -> 570 ms unprofiled, beyond the spread of the steps (±1.7%)"),
        (630, "5.0% longer: 600 -> 630 ms unprofiled, beyond the spread of the steps (±1.7%)"),
        (603, "No difference: 600 -> 603 ms (+0.5%) unprofiled, not beyond the spread of the steps (±1.7%)"),
        (600, "No difference: 600 -> 600 ms unprofiled"),
    ],
)
def test_the_outcome_is_one_sentence_with_its_numbers(after_ms: int, sentence: str) -> None:
    assert describe_step_change(measure_step_change(make_run(), make_run(step_ms=after_ms))) == sentence


def test_an_unknown_spread_is_said_and_not_taken_for_none() -> None:
    change = measure_step_change(make_run(half_ms=None), make_run(step_ms=570))
    assert describe_step_change(change) == (
        "1.05 times as fast (5.0% shorter): 600 -> 570 ms unprofiled, but how much steps vary by themselves is not "
        "known for BEFORE: the log has too few steps"
    )


def test_steps_per_token_are_called_so() -> None:
    after = make_run(step_ms=1_100, settings={"global_batch_size": 512})
    assert describe_step_change(measure_step_change(make_run(), after)).startswith(
        "1.09 times as fast per token (8.3% shorter): 600 -> 1,100 ms unprofiled, 550 ms for as many tokens "
        "as BEFORE, beyond"
    )


def test_steps_that_cannot_be_compared_are_said_with_the_reason() -> None:
    change = measure_step_change(make_run(step_ms=None), make_log_run())
    assert describe_step_change(change).startswith("The steps cannot be compared, the step of ")


def test_gains_are_saved_or_lost_and_outside_by_less_than_the_spread_is_no_full_agreement() -> None:
    assert (format_saved(3 * MS), format_saved(-3 * MS), format_saved(0)) == (
        "3.00 ms saved",
        "3.00 ms lost",
        "no change",
    )
    assert describe_judgement(Judgement.INSIDE, 10, 20, 15) == "inside the predicted range"
    assert describe_judgement(Judgement.INSIDE, 10, 20, 22) == "more than predicted, by no more than the spread"
    assert describe_judgement(Judgement.BELOW, 10, 20, 1) == "less than predicted"


def test_a_value_between_those_of_the_plan_is_not_called_foreign_to_it() -> None:
    base = make_run(settings={"micro_batch_size": 1})
    near, far = (edit("micro_batch_size", size) for size in (2, 4))
    first = base.report.plan[0]
    finding = replace(first.finding, edits=(near,))
    entry = replace(first, finding=finding, edits=(far,), differing_edits=(), overrides=None)
    before = replace(base, report=replace(base.report, findings=(finding,), plan=(entry,)))

    def said_of(settings: dict[str, ConfigData]) -> str:
        after = make_run("a", step_ms=500, settings={"micro_batch_size": 1, **settings})
        sections = make_sections_of(compare(before, [after]))
        notes = [block for section in sections for block in nested_blocks(section.blocks) if isinstance(block, Note)]
        return next(text for note in notes if (text := plain_text(note.content)).startswith("Measured"))

    assert said_of({"micro_batch_size": 2}).endswith(" saved. An entry of BEFORE's plan sets it to another value.")
    assert said_of({"moe_grouped_gemm": False}).endswith(" saved. No entry of BEFORE's plan sets it.")


def test_names_of_tables_differ_where_there_are_several_pairs() -> None:
    comparison = compare(make_run(), [make_run("a"), make_run("b", step_ms=570)])
    sections = make_sections_of(comparison)
    names = [block.name for section in sections for block in nested_blocks(section.blocks) if isinstance(block, Table)]
    assert len(names) == len(set(names))
    assert len({section.name for section in sections}) == len(sections)


def test_bucket_rows_end_with_the_compared_step_which_is_the_sum() -> None:
    comparison = compare(make_run(), [make_run("a", step_ms=570, buckets_ms={"ep_all_to_all": 100})])
    (table,) = (
        block
        for section in make_sections_of(comparison)
        for block in section.blocks
        if isinstance(block, Table) and block.name == "reconciliation"
    )
    assert [[plain_text(column.cell(row)) for column in table.columns] for row in table.rows] == [
        ["traced step", "640 ms", "590 ms", "-50.0 ms"],
        ["added by the profiler", "-40.0 ms", "-20.0 ms", "+20.0 ms"],
        ["step unprofiled", "600 ms", "570 ms", "-30.0 ms"],
    ]
