"""The log's line in the report."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from tests.report.sample_log import LOG
from three_walls.model.report import LogSummary, Report, TimerSummary
from three_walls.model.training_log import TimerKind
from three_walls.report.html_report import render_html
from three_walls.report.log_views import order_timers, spread_of
from three_walls.report.text_log import describe_log, describe_progress, show_log_timers

GIB = 2**30
SUMMARY = LogSummary(
    files=("train.log",),
    iterations=10,
    roles={"steady": 6, "warm-up": 2, "profiled": 2},
    torn_lines=0,
    unprofiled_step_ns=232_000_000,
    peak_memory_bytes=17 * GIB,
    reserved_memory_bytes=19 * GIB,
    allocator_retries=None,
    theoretical_memory_bytes=None,
    parameters=None,
    ooms=0,
    events={},
)


def test_the_log_is_one_line() -> None:
    assert describe_log(SUMMARY) == (
        "Log: unprofiled step 232 ms (6 of 10 iterations; 2 warm-up, 2 profiled); "
        "peak memory 17.0 GiB, reserved 19.0 GiB"
    )


def test_what_is_not_known_is_not_zero() -> None:
    bare = LogSummary(("a",), 0, {}, 3, None, None, None, None, None, None, 2, {})
    assert describe_log(bare) == (
        "Log: unprofiled step unknown (0 of 0 iterations); memory exhausted 2 times; 3 torn lines left out"
    )


def test_the_throughputs_of_steps_jobs_and_all_jobs_stand_beside_each_other() -> None:
    assert describe_progress(LOG) == (
        "Progress file: 214.5 TFLOP/s per GPU in steady iterations; 171.2 TFLOP/s per GPU since the last job's start "
        "(start-up, evaluation and checkpoints count); 120.9 TFLOP/s since the first job's start (time between jobs "
        "counts too); 1 restart with 16 GPUs; last checkpoint at iteration 4,000; other jobs in the file had 8 GPUs"
    )
    assert describe_progress(replace(LOG, progress=None)) == ""
    assert LOG.progress is not None
    started = replace(LOG.progress, job_tflops_per_gpu=None, last_iteration=None, restarts=2, other_gpus=())
    assert describe_progress(replace(LOG, progress=started, tflops_per_gpu=None)) == (
        "Progress file: no checkpoint of these jobs, so no throughput; 2 restarts with 16 GPUs"
    )


def print_timers(report: Report) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        for part in show_log_timers(report):
            console.print(part)
    return captured.get()


def test_timers_of_steps_are_a_table_the_longest_first(report: Report) -> None:
    text = print_timers(report)
    rows = [line.split()[0] for line in text.splitlines()[3:]]
    assert rows == ["forward-compute", "all-grads-sync", "optimizer"]
    first, second = (" ".join(line.split()) for line in text.splitlines()[3:5])
    assert first == "forward-compute 180 ms 234 ms 1.30x rank 5 rank 2 46 a rank's own work"
    assert second == "all-grads-sync unknown 31.0 ms unknown 46 exchange, waits included"
    assert [one.name for one in order_timers(report.log)][-1] == "save-checkpoint"


def test_a_log_without_timers_of_steps_has_no_table(report: Report) -> None:
    assert print_timers(replace(report, log=replace(LOG, timers=LOG.timers[3:]))) == ""
    assert print_timers(replace(report, log=None)) == ""
    assert order_timers(None) == ()


def test_many_timers_are_cut_short_and_the_rest_counted(report: Report) -> None:
    many = tuple(TimerSummary(f"timer-{place:02d}", TimerKind.OTHER, 1, 0, place) for place in range(14))
    assert "2 shorter timers in report.json" in print_timers(replace(report, log=replace(LOG, timers=many)))
    assert spread_of(many[3]) is None


def test_the_page_names_the_slow_rank_and_shows_every_timer(report: Report) -> None:
    page = render_html(report)
    section = page[page.index('<section id="timers">') :]
    assert "<b>Rank 5</b> takes <b>234 ms</b>" in section
    assert "44 of 46 prints" in section
    assert "save-checkpoint" in section
    assert "171.2 TFLOP/s per GPU since the last job" in page
    assert '<section id="timers">' not in render_html(replace(report, log=replace(LOG, timers=())))
