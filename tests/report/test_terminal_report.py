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
from three_walls.report.markdown_report import render_markdown
from three_walls.report.terminal_report import open_console, print_report


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


def test_the_default_fits_on_one_screen_and_names_where_the_rest_is(report: Report) -> None:
    lines = print_plain(report, is_full=False).splitlines()
    titles = [line for line in lines if line.isupper() and not line.startswith(" ")]
    assert titles == ["WARNINGS", "WHERE THE STEP GOES", "THE PLAN"]
    assert len(lines) <= 39  # a screen of 40 with the line on where the files are
    assert lines[-1] == "--full prints every section."
    assert "--full" not in print_plain(report)


def test_the_plan_on_one_screen_has_gains_and_the_first_override_for_the_launcher(report: Report) -> None:
    plan = print_plain(report, is_full=False).partition("THE PLAN\n")[2].splitlines()
    assert plan[0] == "  612 ms now (by the log; traced: 640 ms), 492-604 ms with all entries. Apply them in order."
    assert plan[1] == "  1.  0-89 ms  Dispatch expert tokens with DeepEP instead of NCCL all-to-all"
    assert plan[2] == "               --moe-token-dispatcher-type flex  (and 3 more lines)"
    bridge = replace(report, config=replace(report.config, dialect="megatron_bridge"))
    assert "model.moe_token_dispatcher_type=flex" in print_plain(bridge, is_full=False)
    needing = replace(report.plan[1], needs=(report.plan[0].rule,))
    assert "only together with entry 1" in print_plain(replace(report, plan=(report.plan[0], needing)), is_full=False)


def test_the_budget_is_named_as_traced_where_the_step_is_shown_without_the_profiler(report: Report) -> None:
    replayed = replace(report, verdict=replace(report.verdict, replayed_step_ns=600_000_000))
    assert "WHERE THE STEP GOES, AS TRACED\n" in print_plain(replayed, is_full=False)
    assert "## Where the step goes, as traced\n" in render_markdown(replayed, is_full=False)


def test_a_long_report_still_fits_on_one_screen(report: Report) -> None:
    step, words = report.plan[0], "This sentence is about the run. " * 30
    long = replace(
        report,
        plan=tuple(replace(step, order=order) for order in range(1, 21)),
        warnings=tuple(ReportWarning(f"code-{number}", words) for number in range(9)),
        verdict=replace(report.verdict, reason=words),
    )
    lines = print_plain(long, is_full=False).splitlines()
    assert len(lines) <= 39
    assert any(line.endswith(" more notes: --full") for line in lines)
    plan = lines[lines.index("THE PLAN") :]
    assert sum("--moe-token-dispatcher-type flex" in line for line in plan) >= 3
    assert any(line.strip().endswith("more entries: --full") for line in lines)


def test_lines_of_a_warning_and_control_characters_stay_on_its_lines(report: Report) -> None:
    hostile = replace(report, warnings=(ReportWarning("odd", "[bold]x[/bold]\nTHE PLAN\n\x1b[31mred"),))
    text = print_plain(hostile, is_full=False)
    assert "  - [bold]x[/bold] THE PLAN \\x1b[31mred (odd)\n" in text
    assert "\x1b" not in text


def test_warnings_that_change_neither_verdict_nor_plan_are_counted_on_one_screen(report: Report) -> None:
    limiting, remark = ReportWarning("log-mismatch", "Another run."), ReportWarning("one-step", "One usable step.")
    text = print_plain(replace(report, warnings=(remark, limiting)), is_full=False)
    assert "  - Another run. (log-mismatch)\n  1 more note: --full\n" in text
    assert "One usable step." not in text
    assert "  1 note: --full\n" in print_plain(replace(report, warnings=(remark,)), is_full=False)


@pytest.mark.parametrize("width", [60, 72, 160])
def test_the_width_is_that_of_the_console(report: Report, width: int) -> None:
    for is_full in (False, True):
        assert max(map(len, print_plain(report, is_full, width).splitlines())) <= width


@pytest.mark.parametrize(
    ("columns", "width"), [("72", 72), ("20", 60), ("999", 200), ("", 100), ("wide", 100), (None, 100)]
)
def test_a_pipe_has_the_columns_that_are_stated(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert open_console().width == width
    assert not open_console().is_terminal


def test_colours_are_forced_and_forbidden_by_the_usual_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert (open_console().is_terminal, open_console().no_color) == (True, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert open_console().no_color


@pytest.mark.parametrize(
    "line",
    [
        "The wall leads the runner-up by 16.1% of the step.",
        "ep_all_to_all      communication   150 ms  23.4%  ##############################",
        "Communication wall   148 ms        23.1%  the wall",
        "Compute/host wall   45.0 ms         7.0%  runner-up",
        "Step 612 ms (by the log; traced: 640 ms); 48 of 64 steps complete, traced in 631-655 ms",
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
        "gain 0-89 ms; likely 45 ms; step after it 523-612 ms; basis modelled",
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
    assert " 0 ms" not in text


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


@pytest.mark.parametrize(("dialect", "suffix"), [("megatron_bridge", "bridge"), ("megatron_lm", "megatron")])
def test_the_first_trial_names_the_file_of_the_run_s_launcher(report: Report, dialect: str, suffix: str) -> None:
    first = report.plan[0]
    trial = FirstTrial(first.rule, "x", "modelled", None, None, None, None, None, None, False, "")
    config = replace(report.config, dialect=dialect)
    text = " ".join(print_plain(replace(report, first_trial=trial, config=config)).split())
    assert f"Its overrides: overrides/01-{first.rule}.{suffix}.txt" in text
    without = replace(first, overrides=None)
    bare = replace(report, first_trial=trial, plan=(without, *report.plan[1:]))
    assert "Its overrides:" not in print_plain(bare)
