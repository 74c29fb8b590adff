"""The change of the step is the sum of its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.report.sample_report import MS
from tests.runs.sample_runs import make_log_run, make_run
from three_walls.export.step_detail_rows import KernelRow
from three_walls.report.comparison import ChangeOutcome
from three_walls.runs.compare_runs import (
    MOST_KERNELS,
    compare_communication,
    compare_pair,
    reconcile_buckets,
    reconcile_kernels,
)
from three_walls.runs.compared_run import Run
from three_walls.runs.step_change import measure_step_change
from three_walls.tables.buckets import BUCKETS


def Kernel(bucket: str, name: str, calls: int, ns: int) -> KernelRow:  # noqa: N802 - rows, a line each
    """A row of the report's kernel table; without a name it sums the rest of its bucket."""
    kernels = 1 if name else 2
    return KernelRow(
        bucket, name, name, calls, ns, 0, 0, 0, 0, 0, None, None, 1, (), 0, None, None, None, kernels=kernels
    )


def test_buckets_less_the_profilers_part_are_the_change_of_the_unprofiled_step() -> None:
    before = make_run(step_ms=600)
    after = make_run(step_ms=570, buckets_ms={"ep_all_to_all": 110, "launch_starved": 40})
    budget = reconcile_buckets(before, after, measure_step_change(before, after))
    assert budget is not None
    assert [(row.bucket, row.change_ns) for row in budget.rows[:2]] == [
        ("ep_all_to_all", -40 * MS),
        ("launch_starved", 6 * MS),
    ]
    assert (budget.traced_before_ns, budget.traced_after_ns, budget.traced_change_ns) == (640 * MS, 606 * MS, -34 * MS)
    assert (budget.profiler_before_ns, budget.profiler_after_ns) == (40 * MS, 36 * MS)
    assert budget.step_change_ns == -30 * MS == sum(row.change_ns for row in budget.rows) - budget.profiler_change_ns


def test_a_bucket_of_a_newer_release_is_reconciled_too() -> None:
    before, after = make_run(step_ms=600), make_run(step_ms=570)
    row = replace(after.report.budget[0], bucket="newer_bucket", ns=7 * MS)
    after = replace(after, report=replace(after.report, budget=(*after.report.budget, row)))
    budget = reconcile_buckets(before, after, measure_step_change(before, after))
    assert budget is not None
    assert (budget.rows[0].bucket, budget.traced_after_ns) == ("newer_bucket", 647 * MS)


def test_traced_steps_have_no_part_of_the_profiler() -> None:
    before, after = make_run(step_ms=None), make_run(step_ms=None, buckets_ms={"gemm": 80})
    budget = reconcile_buckets(before, after, measure_step_change(before, after))
    assert budget is not None
    assert (budget.profiler_before_ns, budget.profiler_after_ns, budget.step_change_ns) == (0, 0, -12 * MS)


def test_a_log_alone_has_no_buckets() -> None:
    before, after = make_run(), make_log_run()
    assert reconcile_buckets(before, after, measure_step_change(before, after)) is None
    assert compare_communication(before.report, after.report) == ()


def test_communication_is_compared_class_by_class() -> None:
    rows = compare_communication(make_run().report, make_run().report)
    assert {row.communication_class for row in rows} == {"ep_all_to_all", "all_gather", "reduce_scatter", "all_reduce"}
    assert all(row.exposed_change_ns == 0 for row in rows)


def test_new_gone_and_changed_kernels_sum_to_their_bucket() -> None:
    before = [Kernel("gemm", "nvjet_a", 10, 500), Kernel("gemm", "nvjet_b", 4, 100), Kernel("norm", "rms", 2, 30)]
    after = [Kernel("gemm", "nvjet_a", 10, 450), Kernel("gemm", "grouped", 1, 60), Kernel("norm", "rms", 2, 30)]
    found = reconcile_kernels(before, after, ({"gemm": 550, "norm": 30}, {"gemm": 505, "norm": 30}))
    assert found is not None
    assert [(row.name, row.status, row.change_ns) for row in found.rows] == [
        ("nvjet_b", "gone", -100),
        ("grouped", "new", 60),
        ("nvjet_a", "changed", -50),
        ("rms", "changed", 0),
    ]
    gemm = found.buckets[0]
    assert (gemm.bucket, gemm.kernel_change_ns, gemm.overlap_change_ns, gemm.owned_change_ns) == ("gemm", -90, -45, -45)


def test_a_kernel_that_the_other_report_may_have_summed_is_not_called_new() -> None:
    before = [Kernel("gemm", "a", 1, 500), Kernel("gemm", "", 30, 90)]
    after = [Kernel("gemm", "a", 1, 500), Kernel("gemm", "b", 3, 40), Kernel("gemm", "", 27, 50)]
    found = reconcile_kernels(before, after, ({"gemm": 590}, {"gemm": 590}))
    assert found is not None
    assert [(row.name, row.status, row.change_ns) for row in found.rows] == [
        ("b", "small_before", 40),
        ("a", "changed", 0),
        ("", "rest", -40),
    ]


def test_a_report_without_kernels_is_not_taken_for_a_step_without_any() -> None:
    assert reconcile_kernels([], [Kernel("gemm", "a", 1, 5)], ({}, {})) is None


_KERNELS = st.lists(
    st.builds(
        Kernel,
        st.sampled_from([bucket.name for bucket in BUCKETS]),
        st.sampled_from(["", *(f"kernel_{number}" for number in range(3 * MOST_KERNELS))]),
        st.integers(1, 1_000),
        st.integers(0, 10**12),
    ),
    min_size=1,
    max_size=120,
)


@given(_KERNELS, _KERNELS)
def test_whatever_is_listed_the_rows_of_a_bucket_sum_to_its_change(
    before: list[KernelRow], after: list[KernelRow]
) -> None:
    found = reconcile_kernels(before, after, ({}, {}))
    assert found is not None
    change_ns = sum(kernel.ns for kernel in after) - sum(kernel.ns for kernel in before)
    assert sum(row.change_ns for row in found.rows) == change_ns == sum(row.kernel_change_ns for row in found.buckets)
    assert sum(row.name != "" for row in found.rows) <= MOST_KERNELS


@pytest.mark.parametrize("calls", [0, 1])
def test_calls_are_summed_over_rows_of_one_name(calls: int) -> None:
    before = [Kernel("gemm", "a", 1, 5), Kernel("gemm", "a", calls, 5)]
    found = reconcile_kernels(before, [Kernel("gemm", "a", 1, 5)], ({}, {}))
    assert found is not None
    assert (found.rows[0].before_calls, found.rows[0].after_calls) == (1 + calls, 1)


@pytest.mark.slow
@reads_sample("wide-nvlink-deepep")
def test_a_real_trace_against_itself_changes_in_nothing_and_all_its_sums_hold() -> None:
    run = Run("deepep", analyze_sample("wide-nvlink-deepep.sqlite.xz"))
    pair = compare_pair(run, run)
    assert pair.step.outcome is ChangeOutcome.NO_DIFFERENCE
    assert pair.unlike == pair.settings == ()
    assert pair.budget is not None
    assert pair.kernels is not None
    assert {row.change_ns for row in (*pair.budget.rows, *pair.kernels.rows)} == {0}
    assert {row.status for row in pair.kernels.rows} <= {"changed", "rest"}
    assert sum(row.after_ns for row in pair.budget.rows) == run.traced_step_ns
