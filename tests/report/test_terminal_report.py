"""The terminal report: plain where the output is no terminal, the verdict first, no markup of the run in effect."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.rendered import print_plain
from tests.report.sample_report import without_plan
from three_walls.advice.finding import FirstTrial, Outcome
from three_walls.facts.fact_rows import CopyBandwidth, Efficiency, OverlapSlowdown
from three_walls.lib.report_warning import ReportWarning
from three_walls.report.report import Report
from three_walls.report.terminal_report import open_console, print_report
from three_walls.step.step_rows import Alignment, GapCause, Straggler, Wait


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


def test_the_default_fits_on_one_screen_and_names_where_the_rest_is(report: Report) -> None:
    lines = print_plain(report, is_full=False).splitlines()
    titles = [line for line in lines if line.partition(" (")[0].isupper() and not line.startswith(" ")]
    assert titles == ["WARNINGS", "WHERE THE TRACED STEP GOES (640 ms)", "THE PLAN"]
    assert len(lines) <= 39  # a screen of 40 with the line on where the files are
    assert lines[-1] == "--full prints every section."
    assert "--full" not in print_plain(report)


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
    assert any(line.endswith(" more warnings: --full") for line in lines)
    plan = lines[lines.index("THE PLAN") :]
    assert sum("--moe-token-dispatcher-type flex" in line for line in plan) >= 3
    assert any(line.strip().endswith("more entries: --full") for line in lines)


def test_a_run_without_a_plan_keeps_some_lines_of_what_may_help_on_the_narrowest_screen(report: Report) -> None:
    found = replace(report.findings[0], outcome=Outcome.FOUND)
    long = replace(
        without_plan(report),
        findings=(found,) * 20,
        warnings=tuple(ReportWarning(f"code-{number}", "This sentence is about the run. " * 30) for number in range(9)),
    )
    plan = print_plain(long, width=60, is_full=False).partition("THE PLAN")[2]
    assert "16 more: --full" in plan


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
    many = print_plain(replace(report, warnings=(remark, *[limiting] * 5)), is_full=False)
    assert "  2 more warnings and 1 note: --full\n" in many
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


def test_the_first_rows_of_a_table_are_shown_and_the_rest_summed(report: Report) -> None:
    causes = tuple(GapCause(f"cause {number}", (20 - number) * 1_000_000) for number in range(10))
    text = print_plain(replace(report, ranks=tuple(replace(rank, gap_causes=causes) for rank in report.ranks)))
    assert "cause 7" in text
    assert "cause 8" not in text
    assert "2 more   23.0 ms         3.6%" in text


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


def test_an_abstention_gives_its_reason_and_shows_no_zero(abstained: Report) -> None:
    text = print_plain(abstained)
    assert text.splitlines()[1].startswith("ABSTAINED")
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


@pytest.mark.parametrize(("dialect", "suffix"), [("megatron_bridge", "bridge"), ("megatron_lm", "megatron")])
def test_the_first_trial_names_the_file_of_the_run_s_launcher(report: Report, dialect: str, suffix: str) -> None:
    first = report.plan[0]
    trial = FirstTrial(first.rule, "x", "replayed", None, None, None, None, None, None, "")
    config = replace(report.config, dialect=dialect)
    text = " ".join(print_plain(replace(report, first_trial=trial, config=config)).split())
    assert f"Its overrides: overrides/01-{first.rule}.{suffix}.txt" in text
    without = replace(first, overrides=None)
    bare = replace(report, first_trial=trial, plan=(without, *report.plan[1:]))
    assert "Its overrides:" not in print_plain(bare)
