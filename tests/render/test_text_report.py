"""The terminal report: plain where nobody looks at a terminal, the verdict first, nothing obeyed as markup."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.render.sample_report import without_plan
from three_walls.render.text_report import print_report
from three_walls.vocabulary.report import Report, ReportWarning


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
    from tests.render.sample_report import sample_report

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
        "1. Dispatch expert tokens with DeepEP instead of NCCL all-to-all  [exposed-ep-alltoall-deepep]",
        "gain 0-89 ms, likely 45 ms (modelled)",
        "set moe_router_dtype: unknown -> fp32  changes numerics",
        "set moe_flex_dispatcher_backend: unset -> deepep",
        "confirm first: deep_ep imports in the training container",
        "'model.cuda_graph_scope=[attn,moe_router,moe_preprocess]'",
        "--cuda-graph-scope attn moe_router moe_preprocess",
        "export CUDA_DEVICE_MAX_CONNECTIONS=32",
        "blocked  hide-ep-under-compute  torch_2_6: needs PyTorch 2.6 or newer; the run has 2.5.1",
        "recompute_ns: no NVTX ranges and no attention kernels to count replays by",
    ],
)
def test_it_says(report: Report, line: str) -> None:
    assert line in print_plain(report)


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
