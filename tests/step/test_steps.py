"""Where steps begin and end, and which are kept."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from trace_builder import ADAM, ALL_GATHER, GEMM, POINTWISE, TraceBuilder

from tests.measured import measure
from three_walls.lib.errors import UsageError
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

STEP = "megatron.bridge.training.train.train.training_step_{}"


def run(tmp_path: Path, builder: TraceBuilder, **options: str) -> Report:
    return measure(builder.write(tmp_path / "trace.sqlite"), **options)


def bounds(report: Report) -> list[tuple[int, int, int, bool]]:
    return [(step.index, step.start_ns, step.end_ns, step.kept) for step in report.ranks[0].steps]


def test_training_step_ranges_win_over_everything_else(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(5)
    for order in range(5):
        builder.nvtx(STEP.format(10 + order), max(0, 1000 * order - 10), 1000 * order + 900)
    report = run(tmp_path, builder)
    assert report.step.source == "nvtx training_step"
    assert [step.index for step in report.ranks[0].steps] == [10, 11, 12, 13, 14]
    assert [step.kept for step in report.ranks[0].steps] == [False, True, True, True, False]
    assert report.step.median_ns == 1000
    assert {step.index: step.reason.split(":")[0] for step in report.step.dropped} == {
        10: "starts where the capture starts",
        14: "ends where the capture ends",
    }


@pytest.mark.parametrize("inline", [True, False])
def test_the_text_of_a_range_may_stand_in_the_row_or_in_string_ids(tmp_path: Path, inline: bool) -> None:
    builder = TraceBuilder().steps(4)
    for order in range(4):
        builder.nvtx(STEP.format(order), max(0, 1000 * order - 10), 1000 * order + 900, inline=inline)
    assert run(tmp_path, builder).step.source == "nvtx training_step"


def test_a_users_range_is_used_where_there_is_no_training_step(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4)
    for order in range(4):
        builder.nvtx(f"my loop iteration {order}", max(0, 1000 * order - 10), 1000 * order + 900)
    report = run(tmp_path, builder, step_range=r"loop iteration \d+")
    assert report.step.source == "user's step range"
    assert report.step.kept == 2


def test_steps_run_from_one_optimizer_phase_to_the_next(tmp_path: Path) -> None:
    report = run(tmp_path, TraceBuilder().steps(4))
    assert report.step.source == "optimizer phases"
    assert bounds(report) == [(0, 1, 1001, False), (1, 1001, 2001, True), (2, 2001, 3001, True), (3, 3001, 4001, False)]


def test_a_step_is_not_cut_between_two_clusters_of_one_optimizer_phase(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001):
        builder.kernel(GEMM, at, at + 600)
        builder.kernel(ADAM, at + 700, at + 750)  # dense parameters
        builder.kernel(ALL_GATHER, at + 750, at + 850)  # their all-gather
        builder.kernel(ADAM, at + 900, at + 950)  # expert parameters
    report = run(tmp_path, builder)
    assert [(start, end) for _, start, end, _ in bounds(report)] == [(1, 951), (951, 1951), (1951, 2951)]


def test_gemms_inside_the_update_itself_are_no_new_step(tmp_path: Path) -> None:
    # Muon orthogonalizes with a few small GEMMs between its update kernels.
    builder = TraceBuilder()
    for at in (1, 1001, 2001):
        builder.kernel(GEMM, at, at + 600)
        builder.kernel(ADAM, at + 700, at + 710)
        builder.kernel(GEMM, at + 710, at + 730)
        builder.kernel(ADAM, at + 730, at + 740)
    assert len(bounds(run(tmp_path, builder))) == 3


def test_an_update_that_seems_to_end_after_later_ones_makes_no_step_that_ends_before_it_begins(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001, 4001):
        builder.kernel(GEMM, at, at + 600)
        builder.kernel(ADAM, at + 700, at + (3000 if at == 1001 else 750), stream=9)
    steps = [(start, end) for _, start, end, _ in bounds(run(tmp_path, builder))]
    assert steps == [(1, 751), (751, 4001), (4001, 4751)]  # the updates at 2701 and 3701 end inside of the damaged one


def test_of_two_steps_the_second_is_kept_with_its_reason(tmp_path: Path) -> None:
    report = run(tmp_path, TraceBuilder().steps(2))
    assert [kept for *_, kept in bounds(report)] == [False, True]
    assert "only two steps were captured" in report.step.note
    assert report.step.dropped[0].reason.startswith("starts where the capture starts")


def test_the_last_step_is_whole_where_something_follows_its_update(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(3).kernel(ALL_GATHER, 3001, 3100)  # parameters gathered after the last update
    assert [kept for *_, kept in bounds(run(tmp_path, builder))] == [False, True, True]
    assert [kept for *_, kept in bounds(run_two(tmp_path))] == [False, True]


def run_two(tmp_path: Path) -> Report:
    builder = TraceBuilder().steps(2).kernel(ALL_GATHER, 2001, 2100)
    report = measure(builder.write(tmp_path / "two.sqlite"))
    assert "two were captured" in report.step.note
    return report


def test_without_any_sign_of_steps_the_capture_is_one_window_and_the_report_states_it(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(GEMM, 100, 200).kernel(POINTWISE, 300, 400)
    report = run(tmp_path, builder)
    assert report.step.source == "one window"
    assert bounds(report) == [(0, 100, 400, True)]
    assert "one-window" in {warning.code for warning in report.warnings}


def test_a_range_that_never_ended_is_no_step(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4)
    for order in range(4):
        builder.nvtx(STEP.format(order), max(0, 1000 * order - 10), None)
    assert run(tmp_path, builder).step.source == "optimizer phases"


def test_a_long_pause_between_ranges_belongs_to_no_step(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for order, at in enumerate((10, 1010, 9010, 10010)):  # an evaluation between the second and the third
        builder.nvtx(STEP.format(order), at - 9, at + 900)
        builder.kernel(GEMM, at, at + 800, launched=at - 5)
    assert [(start, end) for _, start, end, _ in bounds(run(tmp_path, builder))] == [
        (10, 1010),
        (1010, 1810),
        (9010, 10010),
        (10010, 10810),
    ]


def _marked(tmp_path: Path, *texts: str, step_range: str | None = None) -> Report:
    builder = TraceBuilder().steps(len(texts))
    for order, text in enumerate(texts):
        builder.nvtx(text, max(0, 1000 * order - 10), 1000 * order + 900)
    path = builder.write(tmp_path / "trace.sqlite")
    return measure(path, step_range=step_range)


@pytest.mark.parametrize(
    ("text", "step_range"),
    [
        ("train_iter {} of 1000", "train_iter"),
        ("step {} bs=1024", "step"),
        ("v2.train_iter {}/1000", r"train_iter \d+"),
        ("epoch 3, {}: train_step (lr 0.1)", "train_step"),
        ("bs 1024 step {}", "step"),
        ("é 3 – train_iter {} of 1000", "train_[a-z]+"),
        ("é 30 – {}: train_iter", ".(?P<name>train).*$"),
    ],
)
def test_a_step_has_the_number_next_to_what_the_user_names(tmp_path: Path, text: str, step_range: str) -> None:
    report = _marked(tmp_path, *(text.format(order) for order in (7, 8, 9, 10)), step_range=step_range)
    assert report.step.source == "user's step range"
    assert [step.index for step in report.ranks[0].steps] == [7, 8, 9, 10]


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("text", ["step {} " + "a" * 100_000 + "!", "step {} " + "a!" * 50_000])
@pytest.mark.parametrize("expression", ["(a+)+$", "(.*a){20}$", "(a|a)*b$", "(a?){50}a{50}$"])
def test_no_expression_takes_long_on_any_text(tmp_path: Path, expression: str, text: str) -> None:
    path = tmp_path / "trace.sqlite"
    texts = [text.format(order) for order in range(4)]
    builder = TraceBuilder().steps(len(texts))
    for order, long_text in enumerate(texts):
        builder.nvtx(long_text, max(0, 1000 * order - 10), 1000 * order + 900)
    builder.write(path)
    measure(path)  # reads tables that are read once
    begin = time.process_time()
    measure(path)
    usual_s = time.process_time() - begin
    with pytest.raises(UsageError) as caught:
        measure(path, step_range=expression)
    assert len(str(caught.value)) < 1_000
    assert time.process_time() - begin - 2 * usual_s < 1.0


@pytest.mark.parametrize("is_inline", [False, True])
def test_a_range_is_found_by_its_expression_wherever_its_text_is(tmp_path: Path, is_inline: bool) -> None:
    builder = TraceBuilder().steps(4)
    for order in range(4):
        builder.nvtx(f"aten::step {order}", max(0, 1000 * order - 10), 1000 * order + 900, inline=is_inline)
    report = measure(builder.write(tmp_path / "trace.sqlite"), step_range="ATEN::STEP|(?i)step$|step [0-9]")
    assert report.step.source == "user's step range"


@pytest.mark.parametrize(
    "numbers",
    [
        ("7", "8", "8", "9"),  # an iteration that was run again
        ("8", "9", "0", "1"),
        ("7",) * 4,
        ("7", "8", "9", "9" * 30),
        ("7", "8", "9", "9" * 5000),
        ("7", "8", "9", "\u0661"),  # a digit, but no number of a step
        ("7", "8", "9", ""),
    ],
)
def test_numbers_that_do_not_increase_are_replaced_by_the_order_and_the_report_states_it(
    tmp_path: Path, numbers: tuple[str, ...]
) -> None:
    report = _marked(tmp_path, *map(STEP.format, numbers))
    assert report.step.source == "nvtx training_step, numbered in order"
    assert [step.index for step in report.ranks[0].steps] == [0, 1, 2, 3]
    assert report.step.kept == 2


def test_a_kernel_of_a_later_range_that_runs_first_makes_no_steps_that_overlap(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for order in range(4):
        at = 1000 * order + 10
        builder.nvtx(STEP.format(order), at - 9, at + 900)
        builder.kernel(GEMM, at, at + 800, launched=at - 5)
    builder.kernel(POINTWISE, 5, 8, stream=9, launched=2500)
    steps = bounds(run(tmp_path, builder))
    assert [index for index, *_ in steps] == [0, 1, 2, 3]
    assert all(end <= start for (_, _, end, _), (_, start, _, _) in pairwise(steps))


@pytest.mark.parametrize(
    ("step_range", "message"),
    [
        ("epoch", "expected an NVTX range in which 'epoch' is found; there are 'iteration 1', 'data <path>'"),
        ("data", "found none in 'data <path>' and the others in which 'data' is found"),
    ],
)
def test_a_step_range_that_finds_nothing_names_ranges_that_exist(tmp_path: Path, step_range: str, message: str) -> None:
    builder = TraceBuilder().steps(4)
    for order in range(4):
        builder.nvtx(f"iteration {order}", max(0, 1000 * order - 10), 1000 * order + 900)
    builder.nvtx("data /home/x/y", 9_000, 9_100).nvtx("aten::mm, op_id = 7, sizes = [[4]]", 0, 99_000)
    path = builder.write(tmp_path / "trace.sqlite")
    with pytest.raises(UsageError) as caught:
        measure(path, step_range=step_range)
    assert message in str(caught.value)
    assert "aten" not in str(caught.value)
    assert measure(path, step_range="iteration").step.source == "user's step range"
