"""A rank that is slow for a reason of its own does not represent the run: it is what to fix first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lockstep import MS, US, Behaviour, simulate
from trace_builder import ADAM, GEMM, MEGATRON, TraceBuilder

from three_walls import analyze
from three_walls.report.html_report import render_html
from three_walls.report.markdown_report import render_markdown
from three_walls.report.overrides_file import render_overrides
from three_walls.report.report import Report
from three_walls.report.section import Hero
from three_walls.report.sections import make_sections

pytestmark = pytest.mark.slow

USUAL = Behaviour()
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EPOCH = 1_795_220_371_000_000_000


def analyze_ranks(tmp_path: Path, *ranks: Behaviour) -> Report:
    return analyze(simulate(ranks).write(tmp_path))


def test_the_healthy_rank_of_median_compute_represents_the_run(tmp_path: Path) -> None:
    ranks = Behaviour(slow=1.02), Behaviour(slow=1.01), Behaviour(slow=1.5), USUAL
    report = analyze_ranks(tmp_path, *ranks)
    assert report.budget_of.startswith("rank 1, step ")
    assert report.budget_of.endswith("the median of 3 healthy ranks; rank 2 is slow")


def test_without_a_slow_rank_the_one_that_waited_least_represents_the_run(tmp_path: Path) -> None:
    report = analyze_ranks(tmp_path, USUAL, Behaviour(slow=1.01), USUAL)
    assert report.budget_of.startswith("rank 1, ")
    assert report.budget_of.endswith("its median step; it waited least for peers of 3 ranks")
    assert report.verdict.culprit is None
    assert [step for step in report.plan if step.order == 0] == []


def test_two_slow_ranks_do_not_hide_each_other(tmp_path: Path) -> None:
    run = simulate([USUAL, Behaviour(slow=1.4), Behaviour(slow=1.6), USUAL], layers=6)
    report = analyze(run.write(tmp_path))
    assert [(straggler.rank, straggler.slow_with) for straggler in report.stragglers] == [(2, (1,)), (1, (2,))]
    assert {straggler.cause for straggler in report.stragglers} == {"slow_compute"}
    compute_ns = (6 * 2_100 + 200) * US  # per step: six layers and the update
    assert [straggler.late_ns for straggler in report.stragglers] == [compute_ns * 6 // 10, compute_ns * 4 // 10]
    assert report.budget_of.endswith("the median of 2 healthy ranks; ranks 1, 2 are slow")
    culprit = report.verdict.culprit
    assert culprit is not None
    assert (culprit.rank, culprit.slow_with, culprit.named) == (2, (1,), "ranks 1 and 2")
    assert render_markdown(report).startswith("# Ranks 1 and 2 are slow: fix them before tuning\n")
    assert "Without the delay of ranks 1 and 2 the step takes" in report.verdict.reason


def test_a_slow_rank_does_not_represent_a_group_that_was_captured_in_part(tmp_path: Path) -> None:
    ranks = [USUAL, Behaviour(slow=1.5), USUAL, USUAL]
    report = analyze(simulate(ranks, world=8, group=8, layers=6).write(tmp_path / "slow"))
    assert [straggler.rank for straggler in report.stragglers] == [1]
    assert report.budget_of.endswith("the median of 3 healthy ranks; rank 1 is slow")
    assert "slow-kernels" not in {each.code for each in report.warnings}  # the verdict names it, with what it costs
    even = analyze(simulate([USUAL] * 4, world=8, group=8, layers=6).write(tmp_path / "even"))
    assert "slow-kernels" not in {each.code for each in even.warnings}


def test_ranks_of_one_speed_are_not_slow_together(tmp_path: Path) -> None:
    report = analyze_ranks(tmp_path, USUAL, Behaviour(slow=1.05), Behaviour(slow=1.05), USUAL)
    assert report.stragglers == ()
    assert report.verdict.culprit is None


def test_of_two_ranks_the_healthy_one_is_the_other(tmp_path: Path) -> None:
    report = analyze_ranks(tmp_path, Behaviour(slow=1.5), USUAL)
    assert report.budget_of.startswith("rank 1, ")
    assert "the only healthy rank; rank 0 is slow" in report.budget_of


def test_a_rank_with_more_tokens_is_not_sick(tmp_path: Path) -> None:
    report = analyze_ranks(tmp_path, USUAL, Behaviour(tokens=2.0), USUAL)
    assert [straggler.cause for straggler in report.stragglers] == ["expert_imbalance"]
    assert report.verdict.culprit is None
    assert report.budget_of.startswith("rank 1, ")


@pytest.mark.parametrize(
    ("odd", "cause", "title", "likely"),
    [
        (Behaviour(slow=1.5), "slow_compute", "Rank 2 is slow: fix it before tuning", "Lower clocks"),
        (Behaviour(shared=3.0), "slow_compute", "Rank 2 is slow: fix it before tuning", "Another process on its GPU"),
        (
            Behaviour(starved_ns=MS),
            "launch_starved",
            "Rank 2 launches late: fix it before tuning",
            "A host that launches",
        ),
        (
            Behaviour(blocked_ns=MS),
            "host_blocked",
            "Rank 2 waits for its host: fix it before tuning",
            "A host that waits",
        ),
    ],
)
def test_the_slow_rank_is_the_headline_and_the_first_entry_of_the_plan(
    tmp_path: Path, odd: Behaviour, cause: str, title: str, likely: str
) -> None:
    run = simulate([USUAL, USUAL, odd, USUAL], layers=6)
    report = analyze(run.write(tmp_path))
    culprit, step_ns = report.verdict.culprit, report.verdict.step_ns
    assert culprit is not None
    assert step_ns is not None
    assert (culprit.rank, culprit.cause) == (2, cause)
    assert culprit.cost_ns == pytest.approx(run.truth.late[(2, 2)], rel=0.05)
    now_ns = report.verdict.replayed_step_ns or step_ns
    assert culprit.step_without_it_ns == now_ns - culprit.cost_ns
    first = report.plan[0]
    assert (first.order, first.rule, first.edits) == (0, "late-rank", ())
    assert (first.step_after_ns.low, first.step_after_ns.high) == (culprit.step_without_it_ns, now_ns)
    assert first.finding.advice.startswith(likely)
    assert "nvidia-smi -q -d CLOCK" in first.finding.advice
    assert report.first_trial is not None
    assert report.first_trial.rule == "late-rank"
    assert render_markdown(report).startswith(f"# {title}\n")
    page = render_html(report)
    assert f"<h1>{title}</h1>" in page
    assert "Fix rank 2 first (entry 0)" in page


def test_shares_of_walls_are_of_the_step_that_is_judged(tmp_path: Path) -> None:
    report = analyze_ranks(tmp_path, USUAL, USUAL, Behaviour(slow=2.0), Behaviour(starved_ns=4 * MS))
    verdict, page = report.verdict, render_html(report)
    assert verdict.culprit is not None
    # No replay shows this delay, so that neither the shares nor the reason are of the step without it.
    assert f"of the step without the delay of rank {verdict.culprit.rank}" not in page
    assert "the walls are of the step with it, because a replay does not show the delay" in verdict.reason
    if verdict.wall is not None:
        (hero,) = [block for section in make_sections(report) for block in section.blocks if isinstance(block, Hero)]
        (recoverable,) = [
            metric.note for metric in hero.metrics if metric.label in ("Recoverable", "Without this wall")
        ]
        (share,) = re.findall(r"[\d.]+%", recoverable)
        assert share in verdict.reason


def test_a_plan_of_the_slow_rank_alone_has_no_overrides(tmp_path: Path) -> None:
    report = analyze_ranks(tmp_path, USUAL, USUAL, Behaviour(slow=1.5), USUAL)
    assert [step.order for step in report.plan if not step.edits] == [0]
    if len(report.plan) == 1:
        assert "The plan has no edits" in render_overrides(report)


def test_waiting_for_the_slow_rank_is_no_communication_to_save(tmp_path: Path) -> None:
    slow = analyze_ranks(tmp_path / "slow", USUAL, USUAL, Behaviour(slow=2.0), USUAL)
    healthy = analyze_ranks(tmp_path / "healthy", USUAL, USUAL, USUAL, USUAL)
    assert slow.verdict.recoverable_ns == healthy.verdict.recoverable_ns
    assert slow.verdict.culprit is not None
    assert slow.verdict.culprit.step_without_it_ns == pytest.approx(healthy.verdict.step_ns, rel=0.01)
    assert "Without the delay of rank 2" in slow.verdict.reason


def test_transfers_that_crawl_with_a_shared_gpu_are_no_bandwidth_to_gain(tmp_path: Path) -> None:
    # The last third of the exchanges takes ten times as long, because the other process has rank 2's GPU.
    crawling = simulate([USUAL, USUAL, Behaviour(shared=3.0), USUAL], steps=0, layers=12)
    plain = simulate([USUAL, USUAL, Behaviour(shared=3.0), USUAL], steps=0, layers=12)
    for _ in range(5):
        plain.run_step()
        crawling.run_step(crawls=10)
    first, second = (analyze(run.write(tmp_path / name)) for name, run in (("plain", plain), ("crawling", crawling)))
    assert [straggler.likely_reason for straggler in second.stragglers] == ["shared_gpu"]
    assert second.facts.number("ep_transfer_exposed_ns") == first.facts.number("ep_transfer_exposed_ns")
    assert (second.facts.number("crawling_transfer_ns") or 0) >= 8 * 9 * 300 * US
    assert "are not counted as communication to save" in second.verdict.reason


def test_only_ranks_of_the_slow_ranks_stage_are_its_peers(tmp_path: Path) -> None:
    # Stage 0 (ranks 0 and 1) computes 60 ms, stage 1 (ranks 2 and 3) 30 ms, and rank 3 is 20 ms slower.
    paths = []
    for rank, compute_ns in enumerate((60 * MS, 60 * MS, 30 * MS, 50 * MS)):
        builder = TraceBuilder(session_start_ns=EPOCH).launched_as(
            MEGATRON + " --pipeline-model-parallel-size 2", RANK=str(rank), WORLD_SIZE="4", LOCAL_WORLD_SIZE="4"
        )
        for step in range(4):
            first = MS + step * 100 * MS
            builder.kernel(GEMM, first, first + compute_ns)
            end = first + (70 + rank // 2) * MS
            builder.kernel(ALL_REDUCE, first + compute_ns, end, stream=30)
            builder.kernel(ADAM, end, first + 100 * MS)
        paths.append(builder.write(tmp_path / f"rank{rank}.sqlite"))
    report = analyze(paths)
    assert [straggler.rank for straggler in report.stragglers] == [3]
    assert report.budget_of.startswith("rank 2, ")


def test_a_rank_that_shares_its_gpu_does_not_represent_a_group_that_was_captured_in_part(tmp_path: Path) -> None:
    run = simulate([Behaviour(shared=3.0), USUAL, USUAL], world=6, group=6, layers=6)
    report = analyze(run.write(tmp_path))
    assert [straggler.likely_reason for straggler in report.stragglers] == ["shared_gpu"]
    assert report.budget_of.endswith("the median of 2 healthy ranks; rank 0 is slow")


def test_a_single_rank_on_a_shared_gpu_is_warned_of(tmp_path: Path) -> None:
    shared = simulate([Behaviour(shared=3.0)], world=4, group=4, layers=6).write(tmp_path / "shared")
    (warning,) = [each for each in analyze(shared).warnings if each.code == "shared-gpu"]
    assert "capture its peers" in warning.message
    alone = simulate([Behaviour(slow=1.5)], world=4, group=4, layers=6).write(tmp_path / "alone")
    assert "shared-gpu" not in {each.code for each in analyze(alone).warnings}


def test_a_rank_that_is_slow_by_less_than_its_calls_take_is_warned_of_by_its_kernels(tmp_path: Path) -> None:
    """So little that a missing rank might be as late: its price is not known."""
    ranks = [USUAL, Behaviour(slow=1.25), USUAL, USUAL]
    report = analyze(simulate(ranks, world=8, group=8, layers=6).write(tmp_path))
    assert report.stragglers == ()
    (warning,) = [each.message for each in report.warnings if each.code == "slow-kernels"]
    assert warning.startswith("Rank 1 takes 1.25 times as long as its peers for the same kernels")
