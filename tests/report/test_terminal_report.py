"""The terminal report: plain where the output is no terminal, the verdict first, no markup of the run in effect."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.rendered import print_plain
from tests.report.sample_report import without_plan
from three_walls.model.finding import FirstTrial
from three_walls.model.report import (
    Alignment,
    CopyBandwidth,
    Efficiency,
    GapCause,
    OverlapSlowdown,
    Report,
    ReportWarning,
    Straggler,
    Wait,
)
from three_walls.report.terminal_report import print_report


def test_it_is_plain_and_at_most_100_columns_wide_when_not_a_terminal(report: Report) -> None:
    text = print_plain(report)
    assert "\x1b" not in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_it_is_coloured_on_a_terminal(report: Report) -> None:
    page = io.StringIO()
    print_report(report, Console(file=page, force_terminal=True, color_system="truecolor", width=80))
    assert "\x1b[" in page.getvalue()


def test_the_verdict_comes_first_and_warnings_before_numbers(report: Report) -> None:
    text = print_plain(report)
    assert text.startswith("Communication-bound: exposed expert all-to-all\n")
    assert text.index("ambiguous_step_boundary") < text.index("WHERE THE TRACED STEP GOES (640 MS)")


def test_the_default_fits_on_two_screens_and_names_where_the_rest_is(report: Report) -> None:
    text = print_plain(report, is_full=False)
    titles = [line for line in text.splitlines() if line.isupper() and not line.startswith(" ")]
    assert titles == ["WARNINGS", "THE PLAN", "OVERRIDES TO APPLY", "WHERE THE TRACED STEP GOES (640 MS)"]
    assert len(text.splitlines()) < 100
    assert text.splitlines()[-1] == "report.html has more sections; --full prints them here."
    assert "--full" not in print_plain(report)


@pytest.mark.parametrize(
    "line",
    [
        "The wall leads the runner-up by 16.1% of the step.",
        "ep_all_to_all      communication   150 ms  23.4%  ##############################",
        "Communication wall   148 ms        23.1%  the wall",
        "Compute/host wall   45.0 ms         7.0%  runner-up",
        "Step 640 ms; 48 of 64 steps complete, 631-655 ms (boundaries from optimizer kernels)",
        "ep_all_to_all    171 ms   150 ms  21.0 ms            23.4%",
        "In its median step, rank 3 runs no compute kernel for 237 ms.",
        "waiting for an operation    187 ms        29.2%  ep_all_to_all on stream 20: 150 ms;",
        "Rank 0 made the others wait 12.0 ms per step: slow compute",
        "Rank 5 made the others wait 1.80 ms per step: cause unknown\n",
        "ep_all_to_all  19-47 ms    140 ms  rank 0     8 of 8 ranks  latest arrival",
        "all_reduce      unknown   unknown  unknown    0 of 8 ranks  too few calls to compare",
        "0.008 ms apart in the median, 0.042 ms at the 95th percentile",
        "forward    router       4.80 ms     0 ms    192\n",
        "           dispatch     42.7 ms  37.9 ms     48  1.34 GB  31.5 GB/s  50.0 GB/s     62.9%",
        "1. Dispatch expert tokens with DeepEP instead of NCCL all-to-all  [exposed-ep-alltoall-deepep]",
        "gain 0-85 ms; likely 43 ms; step after it 527-612 ms; basis modelled",
        "moe_router_dtype             unknown   fp32    [changes numerics] ",
        "moe_flex_dispatcher_backend  unset     deepep\n",
        "     Before you apply it:\n     - deep_ep imports in the training container",
        "'model.cuda_graph_scope=[attn,moe_router,moe_preprocess]'",
        "--cuda-graph-scope attn moe_router moe_preprocess",
        "export CUDA_DEVICE_MAX_CONNECTIONS=32",
        "note: Megatron-LM: remove --moe-shared-expert-overlap",
        "hide-ep-under-compute  blocked  needs PyTorch 2.6 or newer; the run has 2.5.1",
        "The backward pass of the representative step spends 24.0 ms on recomputing forward work.",
        "2 more ",
    ],
)
def test_it_shows(report: Report, line: str) -> None:
    assert line in print_plain(report)


def test_the_first_rows_of_a_table_are_shown_and_the_rest_summed(report: Report) -> None:
    causes = tuple(GapCause(f"cause {number}", (20 - number) * 1_000_000) for number in range(10))
    text = print_plain(replace(report, ranks=tuple(replace(rank, gap_causes=causes) for rank in report.ranks)))
    assert "cause 7" in text
    assert "cause 8" not in text
    assert "2 more   23.0 ms         3.6%" in text


def test_sections_without_content_are_left_out(abstained: Report) -> None:
    text = print_plain(abstained)
    for title in ("GAPS WITHOUT COMPUTE", "WAITING FOR PEERS", "MOE LAYERS", "OVERLAP SLOWDOWN", "PIPELINE"):
        assert title not in text


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


def test_an_abstention_gives_its_reason_and_shows_no_zero(abstained: Report) -> None:
    text = print_plain(abstained)
    assert text.startswith("ABSTAINED")
    assert "No steps were found" in text
    assert "0 ms" not in text


def test_an_empty_plan_is_shown_as_one(report: Report) -> None:
    text = print_plain(without_plan(report))
    assert "no rule recommends an edit" in text
    assert "OVERRIDES" not in text


def test_markup_and_escapes_of_the_run_are_shown_as_text(report: Report) -> None:
    hostile = replace(report, warnings=(ReportWarning("odd", "[bold]x[/bold] :smile: \x1b[31mred"),))
    text = print_plain(hostile)
    assert "[bold]x[/bold] :smile: \\x1b[31mred" in text
    assert "\x1b" not in text


def test_the_bridge_lines_of_each_entry_are_printed_with_full_alone(report: Report) -> None:
    full, short = print_plain(report), print_plain(report, is_full=False)
    plan = full[full.index("THE PLAN") : full.index("OVERRIDES TO APPLY")]
    assert plan.count("Overrides of this entry alone:") == len(report.plan)
    assert "model.moe_token_dispatcher_type=flex" in plan
    assert "'model.cuda_graph_scope=[attn,moe_router,moe_preprocess]'" in plan
    assert "--moe-token-dispatcher-type" not in plan
    assert "Overrides of this entry alone" not in short
    assert full[full.index("OVERRIDES TO APPLY") :].startswith(short[short.index("OVERRIDES TO APPLY") :][:500])


@pytest.mark.parametrize(("dialect", "suffix"), [("megatron_bridge", "bridge"), ("megatron_lm", "megatron")])
def test_the_first_trial_names_the_file_of_the_run_s_launcher(report: Report, dialect: str, suffix: str) -> None:
    first = report.plan[0]
    trial = FirstTrial(first.rule, "x", "modelled", None, None, None, None, None, None, False, "")
    config = replace(report.config, dialect=dialect)
    text = " ".join(print_plain(replace(report, first_trial=trial, config=config), is_full=False).split())
    assert f"Its overrides: overrides/01-{first.rule}.{suffix}.txt" in text
    without = replace(first, overrides=None)
    bare = replace(report, first_trial=trial, plan=(without, *report.plan[1:]))
    assert "Its overrides:" not in print_plain(bare, is_full=False)
