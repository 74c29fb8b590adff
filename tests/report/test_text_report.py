"""The terminal report: plain where nobody looks at a terminal, the verdict first, nothing obeyed as markup."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.sample_report import without_plan
from three_walls.model.fact import Fact, FactSheet
from three_walls.model.finding import Outcome
from three_walls.model.report import (
    Alignment,
    CopyBandwidth,
    Efficiency,
    GapCause,
    MoePart,
    OverlapSlowdown,
    Report,
    ReportWarning,
    Straggler,
    Wait,
)
from three_walls.report.text_report import print_report


def print_plain(report: Report) -> str:
    page = io.StringIO()
    print_report(report, Console(file=page))
    return page.getvalue()


def test_it_is_plain_and_at_most_100_columns_wide_when_not_a_terminal(report: Report) -> None:
    text = print_plain(report)
    assert "\x1b" not in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_it_is_coloured_on_a_terminal() -> None:
    from tests.report.sample_report import sample_report

    page = io.StringIO()
    print_report(sample_report(), Console(file=page, force_terminal=True, color_system="truecolor", width=80))
    assert "\x1b[" in page.getvalue()


def test_the_verdict_comes_first_and_warnings_before_numbers(report: Report) -> None:
    text = print_plain(report)
    assert text.startswith("COMMUNICATION WALL\n")
    assert text.index("ambiguous_step_boundary") < text.index("WHERE THE STEP GOES")


@pytest.mark.parametrize(
    "line",
    [
        "Runner-up: Compute and host wall, host half, 16.1% of the step behind.",
        "ep_all_to_all      communication   150 ms  23.4%  ##############################",
        "Communication wall      148 ms        23.1%  <- the wall",
        "Compute and host wall  45.0 ms         7.0%  runner-up",
        "Step 640 ms; 48 kept last 631-655 ms, median 640 ms; 16 dropped; found by optimizer kernels",
        "ep_all_to_all    171 ms   150 ms  21.0 ms            87.7%",
        "WHY NOTHING COMPUTED  rank 3: 237 ms of its median step without a compute kernel",
        "blocking                  187 ms  29.2%  ep_all_to_all on stream 20 150 ms; reduce_scatter on",
        "rank 0 made the others wait 12.0 ms a step: slow compute - grouped_gemm takes 144 ms, 138 ms on",
        "rank 5 made the others wait 1.80 ms a step: cause unknown\n",
        "ep_all_to_all  19-47 ms    140 ms  rank 0      8 of 8    latest arrival",
        "all_reduce      unknown   unknown  unknown     0 of 8    too few calls to compare",
        "matched ends 0.008 ms apart (median), 0.042 ms",
        "forward    dispatch     42.7 ms  37.9 ms     48   31.5 of 50.0 GB/s",
        "backward   expert_gemm  91.7 ms     0 ms    576\n",
        "nvjet_tst_192x192_64x4...z_coopB_TNN  8x22x1   0.40 ms  0.47 ms   1.16x            96  6.24 ms",
        "1. Dispatch expert tokens with DeepEP instead of NCCL all-to-all  [exposed-ep-alltoall-deepep]",
        "gain 0-89 ms, likely 45 ms (modelled)",
        "set moe_router_dtype: unknown -> fp32  changes numerics",
        "set moe_flex_dispatcher_backend: unset -> deepep",
        "confirm first: deep_ep imports in the training container",
        "'model.cuda_graph_scope=[attn,moe_router,moe_preprocess]'",
        "--cuda-graph-scope attn moe_router moe_preprocess",
        "export CUDA_DEVICE_MAX_CONNECTIONS=32",
        "blocked  hide-ep-under-compute  torch_2_6: needs PyTorch 2.6 or newer; the run has 2.5.1",
        "recompute_ns (for spare-recompute): no NVTX ranges and no attention kernels to count replays by",
    ],
)
def test_it_says(report: Report, line: str) -> None:
    assert line in print_plain(report)


DIAGNOSIS = ("WHY NOTHING COMPUTED", "WHO WAITED FOR WHOM", "MOE LAYERS", "OVERLAP TAX")


def test_sections_without_content_are_left_out(report: Report, abstained: Report) -> None:
    assert not any(title in print_plain(abstained) for title in DIAGNOSIS)
    one = replace(report, ranks=report.ranks[3:4], stragglers=(), alignment=None)
    estimated = replace(one, waits=tuple(wait for wait in report.waits if wait.rank == 3 and not wait.resolved))
    assert "WHO WAITED" not in print_plain(estimated)
    resolved = replace(one, waits=tuple(wait for wait in report.waits if wait.rank == 3))
    assert "WHO WAITED" in print_plain(resolved)


def test_the_eight_longest_causes_are_shown_and_the_rest_summed(report: Report) -> None:
    causes = tuple(GapCause(f"cause {number}", (20 - number) * 1_000_000) for number in range(10))
    text = print_plain(replace(report, ranks=tuple(replace(rank, gap_causes=causes) for rank in report.ranks)))
    assert "cause 7" in text
    assert "cause 8" not in text
    assert "2 more   23.0 ms   3.6%" in text


def test_a_bandwidth_is_unknown_only_where_tokens_are_carried(report: Report) -> None:
    parts = (MoePart(None, "forward", "dispatch", 5, 5, 1), MoePart(None, "forward", "router", 5, 5, 1))
    lines = print_plain(replace(report, moe_layers=parts)).splitlines()
    assert "MOE LAYERS  all layers together" in lines
    assert next(line for line in lines if "  dispatch" in line).endswith("unknown")
    assert next(line for line in lines if line.startswith("  forward    router")).endswith(" 1")


def test_efficiency_shows_rates_against_limits_and_an_unknown_peak_as_unknown(report: Report) -> None:
    lines = print_plain(report).splitlines()
    products = next(line for line in lines if line.startswith("  GEMMs"))
    assert products.split()[-3:] == ["718.0", "TFLOP/s", "72.6%"]
    assert next(line for line in lines if line.startswith("  fused attention")).endswith("unknown")
    assert "  copy_h2d_pinned: 49.3 of 64.0 GB/s; 1 of 5 copies hold 1 MiB or more" in lines
    assert not any("copy_d2h_pinned:" in line for line in lines)


def test_without_efficiency_its_section_is_left_out(report: Report) -> None:
    assert "EFFICIENCY" not in print_plain(replace(report, efficiency=(), copies=()))


def test_very_long_names_stay_within_100_columns(report: Report) -> None:
    name = "x" * 300
    long = replace(
        report,
        ranks=tuple(replace(rank, gap_causes=(GapCause(name, 5, name),)) for rank in report.ranks),
        stragglers=(Straggler(0, 5, name, name),),
        waits=(Wait(name, 0, 5, 5, 1, True, name),),
        alignment=Alignment(name, None, None),
        overlap_slowdown=(OverlapSlowdown(name, name, 1, 1, 1, 2, 1),),
        efficiency=(Efficiency(name, 1, 1, 1.0, 1, 1.0, name),),
        copies=(CopyBandwidth(name, 1, 1, 1, 1, 1.0, 1),),
    )
    assert max(map(len, print_plain(long).splitlines())) <= 100


def test_buckets_without_time_are_left_out(report: Report) -> None:
    assert "attention_unfused" not in print_plain(report)


def test_an_abstention_says_why_and_shows_no_zero(abstained: Report) -> None:
    text = print_plain(abstained)
    assert text.startswith("ABSTAINED")
    assert "No steps were found" in text
    assert "0 ms" not in text


def test_an_empty_plan_says_so(report: Report) -> None:
    text = print_plain(without_plan(report))
    assert "no rule recommends an edit" in text
    assert "TO PASTE" not in text


def test_markup_and_escapes_of_the_run_are_shown_not_obeyed(report: Report) -> None:
    hostile = replace(report, warnings=(ReportWarning("odd", "[bold]x[/bold] :smile: \x1b[31mred"),))
    text = print_plain(hostile)
    assert "[bold]x[/bold] :smile: \\x1b[31mred" in text
    assert "\x1b" not in text


def test_replays_are_listed_by_layer_and_only_where_there_are_some(report: Report) -> None:
    lines = print_plain(report).splitlines()
    assert "RECOMPUTE  forward work replayed in backward: 24.0 ms a step" in lines
    assert "RECOMPUTE" not in print_plain(replace(report, recompute_layers=()))


def test_graph_coverage_says_its_share_or_why_not(report: Report) -> None:
    assert "CUDA GRAPHS  75.0% of the kernels run inside" in print_plain(report).splitlines()
    assert report.graph_coverage is not None
    untold = replace(report.graph_coverage, fraction=None, reason="recorded whole")
    text = print_plain(replace(report, graph_coverage=untold))
    assert "CUDA GRAPHS  unknown\n  recorded whole" in text
    assert "CUDA GRAPHS" not in print_plain(replace(report, graph_coverage=None))


def undecided(missing: dict[str, dict[str, str]], report: Report) -> Report:
    """``report`` with one undecided rule per entry: the facts it lacks and why each is missing."""
    of_rule = report.findings[0]
    findings = tuple(
        replace(of_rule, rule=rule, outcome=Outcome.UNKNOWN, missing=tuple(lacks)) for rule, lacks in missing.items()
    )
    reasons = {name: reason for lacks in missing.values() for name, reason in lacks.items()}
    facts = FactSheet.of([Fact(name, None, "text", missing_reason=reason) for name, reason in reasons.items()])
    return replace(report, plan=(), findings=findings, facts=facts)


def test_facts_that_one_reason_hides_are_told_together(report: Report) -> None:
    settings = {f"config.s{place}": "not known" for place in range(7)}
    text = " ".join(print_plain(undecided({"b": settings, "a": {"config.s0": "not known"}}, report)).split())
    assert (
        "config.s0, config.s1, config.s2, config.s3 and 3 more (for a, b): not known; the training log (--log)" in text
    )


def test_a_measure_that_is_missing_is_not_looked_for_in_the_log(report: Report) -> None:
    text = " ".join(print_plain(undecided({"a": {"step_ns": "no step"}}, report)).split())
    assert "step_ns (for a): no step" in text
    assert "no step; the training log" not in text


def test_only_the_reasons_that_most_rules_wait_for_are_told(report: Report) -> None:
    text = print_plain(undecided({f"rule{n}": {f"fact{n}": f"reason {n}"} for n in range(10)}, report))
    assert "reason 7" in text
    assert "reason 8" not in text
    assert "2 more facts, each with its reason, in report.json" in text
