"""Log and trace together: what the profiler added, what is withheld, what is warned of."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from examples import ARGUMENTS, MEMORY_MB, OOM, iteration, rank_timers
from lockstep import Behaviour, simulate
from trace_builder import ADAM, GEMM, MEGATRON, TraceBuilder

from three_walls import analyze
from three_walls.report.json_report import render_json
from three_walls.report.report import Report
from three_walls.report.sections.steps import describe_log
from three_walls.step.joined_log import NO_LOG

pytestmark = pytest.mark.slow

MS = 1_000_000


def starved_trace(path: Path, flags: str = "", session_start_ns: int | None = None) -> Path:
    """Steps of 100 ms: 50 compute, 40 launch-starved (the optimizer is launched late), 10 optimizer."""
    builder = TraceBuilder(session_start_ns=session_start_ns)
    if flags:
        builder.launched_as(f"{MEGATRON} {flags}", RANK="0", WORLD_SIZE="1")
    for step in range(5):
        at = step * 100 * MS + 1
        builder.kernel(GEMM, at, at + 50 * MS, launched=at)
        builder.kernel(ADAM, at + 90 * MS, at + 100 * MS, launched=at + 90 * MS)
    return builder.write(path / "trace.sqlite")


def log_of(path: Path, *lines: str) -> Path:
    file = path / "train.log"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def steps_of(ms: float, profiled_ms: float = 100.0) -> list[str]:
    """Iterations 9 and 10 are profiled, as ARGUMENTS states; 11 includes the profiler's stop."""
    lengths = [900.0, *[ms] * 7, profiled_ms, profiled_ms, 3000.0]
    return [iteration(place, length) for place, length in enumerate(lengths, start=1)]


def codes(report: Report) -> set[str]:
    return {warning.code for warning in report.warnings}


NOT_OURS = [line for line in ARGUMENTS if "parallel" not in line]


def test_without_a_log_its_facts_are_missing_and_the_warning_asks_for_one(tmp_path: Path) -> None:
    report = analyze(starved_trace(tmp_path))
    assert report.log is None
    assert report.facts.get("unprofiled_step_ns").missing_reason == NO_LOG
    assert report.facts.number("traced_step_ns") == 100 * MS
    assert report.facts.number("host_recoverable_ns") == 40 * MS
    (asks,) = [w.message for w in report.warnings if w.code == "host-time-under-profiler"]
    assert "--log" in asks


def test_what_the_profiler_added_is_not_recoverable(tmp_path: Path) -> None:
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *NOT_OURS, *steps_of(75.0)))
    number = report.facts.number
    assert (number("unprofiled_step_ns"), number("unprofiled_steps_count")) == (75 * MS, 7)
    assert number("profiler_perturbation_ratio") == pytest.approx(100 / 75)
    assert number("profiler_excess_ns") == 25 * MS
    assert number("launch_starved_ns") == 40 * MS
    assert number("host_recoverable_ns") == number("launch_starved_recoverable_ns") == 15 * MS
    assert "profiler-perturbation" in codes(report)
    assert "host-time-under-profiler" not in codes(report)
    assert "the 75.0 ms step (replayed without the profiler)" in report.verdict.reason


@pytest.mark.parametrize(
    ("behaviour", "is_the_profilers"),
    [(Behaviour(starved_ns=MS), True), (Behaviour(slow=1.1), False)],
    ids=["starved", "slow"],
)
def test_late_launches_count_less_what_the_profiler_added_and_slow_kernels_do_not(
    tmp_path: Path, behaviour: Behaviour, is_the_profilers: bool
) -> None:
    run = simulate([Behaviour(), behaviour, Behaviour()])
    late_ns = run.truth.late[(1, 2)]
    facts = analyze(run.write(tmp_path), logs=log_of(tmp_path, *NOT_OURS, *steps_of(8.8, profiled_ms=12.0))).facts
    assert (facts.number("profiler_excess_ns") or 0) > late_ns
    assert facts.number("straggler_late_ns") == late_ns
    assert facts.number("straggler_late_recoverable_ns") == (0 if is_the_profilers else late_ns)


def test_more_than_all_host_time_leaves_none_and_warns_that_more_is_wrong(tmp_path: Path) -> None:
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *NOT_OURS, *steps_of(56.0)))
    assert report.facts.number("host_recoverable_ns") == 0
    (warned,) = [w.message for w in report.warnings if w.code == "profiler-perturbation"]
    assert "Another 4.0 ms is elsewhere" in warned


def test_a_difference_as_small_as_between_iterations_changes_nothing(tmp_path: Path) -> None:
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *NOT_OURS, *steps_of(98.0)))
    assert report.facts.number("host_recoverable_ns") == 40 * MS
    assert report.facts.number("profiler_excess_ns") == 0
    assert not codes(report) & {"profiler-perturbation", "host-time-under-profiler", "log-mismatch"}


def test_a_log_with_other_sizes_is_of_another_run(tmp_path: Path) -> None:
    trace = starved_trace(tmp_path, "--tensor-model-parallel-size 1")
    report = analyze(trace, logs=log_of(tmp_path, "> initialized tensor model parallel with size 2", *steps_of(75.0)))
    assert "log-mismatch" in codes(report)
    assert "tensor_model_parallel_size is 2" in str(report.facts.get("unprofiled_step_ns").missing_reason)
    assert report.log and report.log.mismatch == "tensor_model_parallel_size is 2 in the log and 1 in the trace"
    assert describe_log(report.log) == f"Log: not used, because it is of another run: {report.log.mismatch}"
    assert report.facts.number("host_recoverable_ns") == 40 * MS
    same = analyze(trace, logs=log_of(tmp_path, "> initialized tensor model parallel with size 1", *steps_of(75.0)))
    assert "log-mismatch" not in codes(same)


def test_logs_of_two_runs_contradict_each_other(tmp_path: Path) -> None:
    sizes = [f"> initialized tensor model parallel with size {size}" for size in (1, 2)]
    trace = starved_trace(tmp_path)
    report = analyze(trace, logs=log_of(tmp_path, *NOT_OURS, *sizes, *steps_of(75.0)))
    assert "log-mismatch" in codes(report)
    again = analyze(trace, logs=log_of(tmp_path, *NOT_OURS, sizes[0], sizes[0], *steps_of(75.0)))
    assert "log-mismatch" not in codes(again)


def test_a_log_of_a_larger_model_is_of_another_run(tmp_path: Path) -> None:
    trace = starved_trace(tmp_path, "--tensor-model-parallel-size 1")
    for layers, is_another in ((2, False), (48, True)):
        line = f"  num_layers ...................................... {layers}"
        report = analyze(trace, logs=log_of(tmp_path, NOT_OURS[0], line, *NOT_OURS[1:], *steps_of(75.0)))
        assert ("log-mismatch" in codes(report)) == is_another


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("train: {global_batch_size: 8}", ""),
        ("train: {global_batch_size: 64}", "global_batch_size is 8 in the log and 64 in the config file"),
        ("train: {global_batch_size: 64, rampup_batch_size: [8, 8, 9]}", ""),
        ("parallel: {}", ""),
    ],
)
def test_a_log_that_contradicts_the_saved_configuration_is_of_another_run(
    tmp_path: Path, sizes: str, message: str
) -> None:
    """Of a run of Megatron-Bridge the trace records no settings: its saved configuration has them."""
    config = tmp_path / "run_config.yaml"
    config.write_text(f"model: {{num_layers: 2}}\n{sizes}\n")
    report = analyze(starved_trace(tmp_path), config=config, logs=log_of(tmp_path, *steps_of(75.0)))
    found = [warning.message for warning in report.warnings if warning.code == "log-mismatch"]
    assert [message in text for text in found] == ([True] if message else [])
    is_missing = "of another run" in str(report.facts.get("unprofiled_step_ns").missing_reason)
    assert is_missing == bool(message)


PRINTED = datetime(2026, 7, 25, 10, 11, 12, tzinfo=UTC)
SAME_MOMENT = [timedelta(0), timedelta(hours=5, minutes=30), timedelta(hours=-13), timedelta(seconds=40)]
"""After the log's lines, which may be of local time; the clocks of two hosts differ."""
OTHER_MOMENT = [timedelta(minutes=7), timedelta(minutes=-7), timedelta(days=1), timedelta(days=-9)]
MOMENTS = [
    timedelta(hours=5, minutes=30),
    timedelta(minutes=-7),
    *(
        pytest.param(moment, marks=pytest.mark.exhaustive)
        for moment in (*SAME_MOMENT, *OTHER_MOMENT)
        if moment not in (timedelta(hours=5, minutes=30), timedelta(minutes=-7))
    ),
]


@pytest.mark.parametrize("later", MOMENTS)
def test_a_log_whose_iterations_were_profiled_at_another_time_is_of_another_run(
    tmp_path: Path, later: timedelta
) -> None:
    trace = starved_trace(tmp_path, session_start_ns=int((PRINTED + later).timestamp()) * 1_000_000_000)
    report = analyze(trace, logs=log_of(tmp_path, *NOT_OURS, *steps_of(75.0)))
    found = [warning.message for warning in report.warnings if warning.code == "log-mismatch"]
    is_another = later in OTHER_MOMENT
    printed = (
        "its profiled iterations were printed from 2026-07-25 10:11:12 to 2026-07-25 10:11:12, and the capture is of"
    )
    assert [printed in text for text in found] == [True] * is_another
    assert report.facts.get("unprofiled_step_ns").is_missing == is_another


@pytest.mark.parametrize("later", [timedelta(0), timedelta(days=5)])
def test_a_log_that_ends_before_it_profiles_is_of_another_run_where_the_dates_say_so(
    tmp_path: Path, later: timedelta
) -> None:
    trace = starved_trace(tmp_path, session_start_ns=int((PRINTED + later).timestamp()) * 1_000_000_000)
    report = analyze(trace, logs=log_of(tmp_path, *NOT_OURS, *steps_of(75.0)[:7]))
    found = [warning.message for warning in report.warnings if warning.code == "log-mismatch"]
    expected = "its profiled iterations would have been printed from 2026-07-25 10:11:12 to 2026-07-25 10:11:14"
    assert [expected in text for text in found] == [True] * bool(later)
    assert report.facts.get("unprofiled_step_ns").is_missing == bool(later)


@pytest.mark.parametrize("later", MOMENTS)
def test_a_log_without_a_profiler_that_was_printed_at_another_time_is_named_and_stays_in_use(
    tmp_path: Path, later: timedelta
) -> None:
    off = [line.replace("True", "False") for line in NOT_OURS]
    trace = starved_trace(tmp_path, session_start_ns=int((PRINTED + later).timestamp()) * 1_000_000_000)
    report = analyze(trace, logs=log_of(tmp_path, *off, *steps_of(75.0, profiled_ms=75.0)))
    found = [warning.message for warning in report.warnings if warning.code == "log-date"]
    named = f"2026-07-25 10:11:12, and the trace is of {PRINTED + later:%Y-%m-%d %H:%M:%S} UTC"
    assert [named in text for text in found] == [True] * (later in OTHER_MOMENT)
    assert report.facts.number("unprofiled_step_ns") == 75 * MS


@pytest.mark.parametrize(("first", "is_named"), [(8, False), (10, False), (500, True)])
def test_a_log_without_the_iterations_of_the_trace_is_named(tmp_path: Path, first: int, is_named: bool) -> None:
    """The log holds iterations 1 to 11; steps of NVTX are counted from 0."""
    builder = TraceBuilder()
    for order in range(4):
        at = order * 100 * MS + 1
        builder.nvtx(f"training_step_{first + order}", at, at + 99 * MS)
        builder.kernel(GEMM, at + 1, at + 50 * MS, launched=at + 1)
        builder.kernel(ADAM, at + 90 * MS, at + 99 * MS, launched=at + 2)
    trace = builder.write(tmp_path / "trace.sqlite")
    report = analyze(trace, logs=log_of(tmp_path, *NOT_OURS, *steps_of(90.0)))
    found = [warning.message for warning in report.warnings if warning.code == "log-iterations"]
    expected = "The log holds iterations 1 to 11, and the trace steps 500 to 503. Check that they are of one run."
    assert found == [expected] * is_named


@pytest.mark.parametrize(
    ("ms", "is_another"), [(32.0, True), (53.0, True), (56.0, False), (120.0, False), (130.0, True)]
)
def test_a_log_with_steps_that_no_profiler_explains_is_of_another_run(
    tmp_path: Path, ms: float, is_another: bool
) -> None:
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *NOT_OURS, *steps_of(ms)))
    assert ("log-mismatch" in codes(report)) == is_another
    assert report.facts.get("log_oom_count").is_missing == is_another
    sources = {value.source for value in report.config.values.values()}
    assert ("log arguments" in sources) == (not is_another)  # nor are its settings those of this run


@pytest.mark.parametrize(
    ("profiled_ms", "is_another"),
    [
        ([103.0] * 5, False),
        ([97.5] * 5, False),
        ([106.0] * 5, True),
        ([90.0] * 5, True),
        ([100.0, 99.0, 107.0, 100.0, 98.0], False),
        ([100.0, 88.0, 112.0, 100.0, 100.0], True),
    ],
)
def test_a_log_whose_profiled_iterations_are_not_the_captured_steps_is_of_another_run(
    tmp_path: Path, profiled_ms: list[float], is_another: bool
) -> None:
    """The capture holds five steps of 100 ms, as many as ARGUMENTS lets the profiler record here.

    Each iteration may be cut at another place of the host's work.
    """
    stated = [line.replace("10", "13") if "profile_step_end" in line else line for line in NOT_OURS]
    lengths = [900.0, *[75.0] * 7, *profiled_ms, 3000.0]
    lines = [iteration(place, length) for place, length in enumerate(lengths, start=1)]
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *stated, *lines))
    found = [warning.message for warning in report.warnings if warning.code == "log-mismatch"]
    assert ["its profiled iterations take" in text for text in found] == [True] * is_another
    assert report.facts.get("unprofiled_step_ns").is_missing == is_another


@pytest.mark.parametrize(
    ("profiled_ms", "is_another"),
    [
        ([130.0, *[100.0] * 5, 104.0], False),  # the capture begins one iteration late, and ends one early
        ([*[100.0] * 5, 130.0, 130.0], False),
        ([100.0, 100.0, 100.0, 130.0, 100.0, 100.0, 100.0], True),
        ([106.0] * 7, True),
    ],
)
def test_a_capture_of_fewer_steps_is_looked_for_among_the_profiled_iterations(
    tmp_path: Path, profiled_ms: list[float], is_another: bool
) -> None:
    stated = [line.replace("10", "15") if "profile_step_end" in line else line for line in NOT_OURS]
    lines = [iteration(place, ms) for place, ms in enumerate([900.0, *[75.0] * 7, *profiled_ms, 3000.0], start=1)]
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *stated, *lines))
    assert ("log-mismatch" in codes(report)) == is_another
    assert report.facts.get("unprofiled_step_ns").missing_reason is None or is_another


@pytest.mark.parametrize(("longest_ms", "is_named"), [(90.0, True), (98.0, False)])
def test_a_log_without_an_iteration_as_long_as_a_captured_step_is_named_and_stays_in_use(
    tmp_path: Path, longest_ms: float, is_named: bool
) -> None:
    lines = [iteration(place, 75.0) for place in range(1, 40)] + [iteration(40, longest_ms)]
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *lines))
    assert ("log-steps" in codes(report)) == is_named
    assert report.facts.number("unprofiled_step_ns") == 75 * MS


def test_a_few_iterations_of_unknown_role_give_no_median_and_many_do(tmp_path: Path) -> None:
    trace = starved_trace(tmp_path)
    few = analyze(trace, logs=log_of(tmp_path, *steps_of(75.0)))
    assert "which iterations were profiled" in str(few.facts.get("unprofiled_step_ns").missing_reason)
    many = analyze(trace, logs=log_of(tmp_path, *(iteration(place, 75.0) for place in range(1, 40))))
    assert many.facts.number("unprofiled_step_ns") == 75 * MS


def test_what_steady_iterations_differ_by_is_a_time_and_a_ratio(tmp_path: Path) -> None:
    lengths = [74.0, 75.0, 76.0, 75.0, 77.0, 75.0, 500.0, 75.0]  # the long one is an outlier
    off = [line.replace("True", "False") for line in NOT_OURS]
    lines = [iteration(place, length) for place, length in enumerate(lengths, start=1)]
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *off, *lines))
    assert report.facts.number("unprofiled_step_range_ns") == 3 * MS
    assert report.facts.number("unprofiled_step_spread_ratio") == pytest.approx(77 / 74)


def test_a_saved_configuration_states_which_iterations_of_a_log_without_arguments_are_profiled(tmp_path: Path) -> None:
    """The profiled iterations (76 ms) are hardly longer; the profiler's start comes before and its stop after them."""
    config = tmp_path / "run_config.yaml"
    config.write_text("profiling:\n  profile_step_start: 8\n  profile_step_end: 11\n")
    lengths = [900.0, *[75.0] * 7, 180.0, 76.5, 76.4, 3000.0]
    log = log_of(tmp_path, *(iteration(place, length) for place, length in enumerate(lengths, start=1)))
    trace = starved_trace(tmp_path)
    report = analyze(trace, logs=log, config=config)
    assert report.log is not None
    assert report.log.roles == {"warm-up": 1, "steady": 7, "profiled": 3, "profiler's stop": 1}
    without = analyze(trace, logs=log).log
    assert without is not None
    assert without.roles["outlier"] == 2


def test_a_configuration_without_the_profiler_states_no_profiled_iterations(tmp_path: Path) -> None:
    config = tmp_path / "run_config.yaml"
    steps = "  profile_step_start: 8\n  profile_step_end: 11\n"
    config.write_text(f"profiling:\n  use_nsys_profiler: false\n{steps}")
    log = log_of(tmp_path, *(iteration(place, 75.0) for place in range(1, 13)))
    report = analyze(starved_trace(tmp_path), logs=log, config=config)
    assert report.log is not None
    assert report.log.roles == {"steady": 12}


def test_a_log_without_iteration_lines_names_the_rank_that_prints_them(tmp_path: Path) -> None:
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *NOT_OURS, MEMORY_MB))
    assert "the last rank prints them" in str(report.facts.get("unprofiled_step_ns").missing_reason)


def test_a_log_of_a_run_without_profiler_has_no_profiled_iteration(tmp_path: Path) -> None:
    off = [line.replace("True", "False") for line in NOT_OURS]
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *off, *(iteration(n, 75.0) for n in range(1, 12))))
    assert report.log is not None
    assert report.log.roles == {"steady": 11}


@pytest.mark.parametrize(("started", "is_early"), [(0, True), (1, False)])
def test_memory_of_the_first_iteration_alone_is_no_peak_of_the_run(
    tmp_path: Path, started: int, is_early: bool
) -> None:
    """The second run goes on from iteration 1, so its memory line comes after two of its iterations."""
    memory = MEMORY_MB.replace("after 2", "after 1" if is_early else "after 3")
    start = f"Starting training loop at iteration {started}"
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *NOT_OURS, start, *steps_of(75.0), memory))
    assert report.facts.number("log_peak_memory_bytes") == 300.5 * 2**20
    assert report.facts.number("log_memory_iterations_count") == (1 if is_early else 2)
    assert report.facts.get("memory_peak_fraction").is_missing == is_early  # the moments are not known here
    assert ("log-memory-early" in codes(report)) == is_early


def test_memory_and_exhaustion_are_facts_and_the_summary_holds_no_path(tmp_path: Path) -> None:
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *NOT_OURS, *steps_of(75.0), MEMORY_MB, OOM))
    assert report.facts.number("log_peak_memory_bytes") == 300.5 * 2**20
    assert report.facts.number("log_oom_count") == 1
    assert report.facts.get("log_allocator_retries_count").is_missing
    assert "log-out-of-memory" in codes(report)
    log = json.loads(render_json(report))["log"]
    assert log["files"] == ["train.log"]
    assert (log["unprofiled_step_ns"], log["roles"]["steady"], log["ooms"]) == (75_000_000, 7, 1)
    assert str(tmp_path) not in json.dumps(log)


def test_a_file_that_is_no_log_is_named_as_none(tmp_path: Path) -> None:
    trace = starved_trace(tmp_path)
    report = analyze(trace, logs=log_of(tmp_path, "remember the milk"))
    assert {"log-says-nothing", "host-time-under-profiler"} <= codes(report)
    assert not [warning.message for warning in report.warnings if "--log" in warning.message]  # it was given
    assert report.log and describe_log(report.log).startswith("Log: train.log holds no iteration line of ")
    assert "log-says-nothing" in codes(analyze(trace, logs=[trace]))
    assert "log-says-nothing" not in codes(analyze(trace, logs=log_of(tmp_path, iteration(1, 75.0))))


def test_what_the_run_complained_about_is_a_warning(tmp_path: Path) -> None:
    line = "WARNING:megatron.bridge:Key 'a.b' in overrides not found in config object ConfigContainer. Skipping."
    (warning,) = [w for w in analyze(starved_trace(tmp_path), logs=log_of(tmp_path, line)).warnings if "over" in w.code]
    assert warning.code == "log-override-skipped"
    assert warning.message == "The log reports: Key 'a.b' in overrides not found in config object ConfigContainer"


@pytest.mark.parametrize(("reason", "is_warned"), [("TP size < 2", False), ("sequence_parallel=False", True)])
def test_overlap_that_was_turned_off_is_a_warning_where_there_was_something_to_overlap(
    tmp_path: Path, reason: str, is_warned: bool
) -> None:
    line = f"WARNING:root:Disabling tensor parallel communication overlap due to {reason}."
    assert ("log-overlap" in codes(analyze(starved_trace(tmp_path), logs=log_of(tmp_path, line)))) == is_warned


MISSING = "ImportError: HybridEP is not installed. Please install HybridEP package from https://github.com/deepseek-ai/"


def test_a_dispatcher_that_the_log_reports_missing_is_a_fact_and_the_other_stays_unknown(tmp_path: Path) -> None:
    facts = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, MISSING, *steps_of(100.0))).facts
    assert facts.get("log_hybridep_unavailable").value is True
    assert facts.get("log_unavailable_dispatchers").value == "HybridEP"
    assert facts.get("log_deepep_unavailable").missing_reason == "the log does not report whether DeepEP is available"


def test_a_log_that_names_no_dispatcher_does_not_prove_that_one_is_there(tmp_path: Path) -> None:
    facts = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *steps_of(100.0))).facts
    named = facts.get("log_unavailable_dispatchers")
    assert named.value is None
    assert not named.is_missing
    assert facts.get("log_hybridep_unavailable").is_missing


def ranks_of(slow_ms: float) -> list[str]:
    """Steps of 75 ms whose timers print eight ranks, one of them with its own time."""
    times = dict.fromkeys(range(8), 40.0) | {5: slow_ms}
    return [
        line
        for place in range(1, 8)
        for line in [iteration(place, 75.0), *rank_timers({"forward-compute": times, "optimizer": times})]
    ]


def test_a_slow_rank_of_the_timers_is_named_in_every_form(tmp_path: Path) -> None:
    trace = starved_trace(tmp_path, "--expert-model-parallel-size 1 --pipeline-model-parallel-size 1")
    report = analyze(trace, logs=log_of(tmp_path, *ranks_of(52.0)))
    (message,) = [w.message for w in report.warnings if w.code == "log-slow-rank"]
    assert message == (
        "By the log's timers, rank 5 takes 1.30 times as long as rank 0 in forward-compute (7 of 7 prints). "
        "Find out why before you change the config."
    )
    log = json.loads(render_json(report))["log"]
    assert [(timer["name"], timer["slowest_rank"], timer["longest_ns"]) for timer in log["timers"]] == [
        ("forward-compute", 5, 52_000_000),
        ("optimizer", 5, 52_000_000),
    ]
    assert [(slow["rank"], slow["ns"], slow["fastest_ns"]) for slow in log["slow_ranks"]] == [
        (5, 52_000_000, 40_000_000)
    ]
    assert "log-slow-rank" not in codes(analyze(trace, logs=log_of(tmp_path, *ranks_of(42.0))))


def test_expert_groups_and_unknown_stages_are_named_next_to_a_slow_rank(tmp_path: Path) -> None:
    def message(flags: str) -> str:
        (tmp_path / "trace.sqlite").unlink(missing_ok=True)
        report = analyze(starved_trace(tmp_path, flags), logs=log_of(tmp_path, *ranks_of(52.0)))
        return next(w.message for w in report.warnings if w.code == "log-slow-rank")

    assert "expert group" in message("--expert-model-parallel-size 8 --num-experts 8")
    assert "pipeline stages" not in message("--expert-model-parallel-size 8 --num-experts 8")
    assert "pipeline stages" in message("")


def test_a_restart_within_a_log_does_not_touch_the_median(tmp_path: Path) -> None:
    starts = "[before the start of training step] datetime: 2026-11-21 03:37:24"
    again = [iteration(place, ms) for place, ms in enumerate((900.0, 75.0, 75.0), start=8)]
    report = analyze(
        starved_trace(tmp_path),
        logs=log_of(tmp_path, *NOT_OURS, starts, *steps_of(75.0)[:7], starts, starts, *again),
    )
    assert report.log is not None
    assert report.log.roles["warm-up"] == 2
    assert "outlier" not in report.log.roles
    assert report.facts.number("unprofiled_step_ns") == 75 * MS


def numbered(first: int, *lengths: float, day: int = 25) -> list[str]:
    printed_at = f"2026-07-{day} 10:11:12"
    return [iteration(first + place, ms, printed_at=printed_at) for place, ms in enumerate(lengths)]


OWN = numbered(1, 900.0, *[75.0] * 7, 100.0, 100.0, 3000.0, 75.0)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*OWN, *numbered(9, *[45.0] * 12, day=26)], id="started again before the profiled iterations"),
        pytest.param([*OWN, *numbered(13, *[45.0] * 12, day=26)], id="started again after them"),
        pytest.param([*numbered(1, *[45.0] * 6, day=24), *OWN[6:]], id="an earlier job of a day before"),
    ],
)
def test_only_the_start_that_was_captured_counts(tmp_path: Path, lines: list[str]) -> None:
    trace = starved_trace(tmp_path, session_start_ns=int(PRINTED.timestamp()) * 1_000_000_000)
    report = analyze(trace, logs=log_of(tmp_path, *NOT_OURS, *lines))
    assert report.facts.number("unprofiled_step_ns") == 75 * MS
    assert report.log is not None
    assert report.log.roles["of another start"] in {6, 12}


def test_starts_of_other_steps_of_which_none_is_known_to_be_captured_are_named_and_not_used(tmp_path: Path) -> None:
    lines = [*numbered(1, *[75.0] * 20), *numbered(1, *[90.0] * 20)]
    report = analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *lines))
    reason = "training was started 2 times, with steps of 75.0 ms to 90.0 ms, and which was captured is unknown"
    assert report.facts.get("unprofiled_step_ns").missing_reason == reason
    assert any(reason in w.message for w in report.warnings if w.code == "log-starts")
    alike = [*numbered(1, *[75.0] * 20), *numbered(1, *[76.0] * 20)]
    assert analyze(tmp_path / "trace.sqlite", logs=log_of(tmp_path, *alike)).facts.number("unprofiled_step_ns")


def test_iterations_unlike_all_unprofiled_ones_beside_the_profiled_ones_are_not_used(tmp_path: Path) -> None:
    trace = starved_trace(tmp_path)
    earlier = numbered(1, *[45.0] * 7)
    report = analyze(trace, logs=log_of(tmp_path, *NOT_OURS, *earlier, *OWN[7:]))
    reason = (
        "the unprofiled iterations beside the profiled ones take 75.0 ms to 75.0 ms, and the others 45.0 ms to 45.0 "
        "ms, which may be of another job"
    )
    assert report.facts.get("unprofiled_step_ns").missing_reason == reason
    assert any(reason in w.message for w in report.warnings if w.code == "log-starts")
    slow_last = [*OWN[:-1], *numbered(12, 90.0)]
    assert analyze(trace, logs=log_of(tmp_path, *NOT_OURS, *slow_last)).facts.number("unprofiled_step_ns") == 75 * MS


def test_graphs_that_hold_no_layer_and_slow_gpus_are_passed_on(tmp_path: Path) -> None:
    lines = [
        "TECudaGraphHelper: No graphable layers found. Skipping CUDA graph capture.",
        "STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: {3}",
    ]
    messages = {w.code: w.message for w in analyze(starved_trace(tmp_path), logs=log_of(tmp_path, *lines)).warnings}
    assert messages["log-cuda-graphs"] == "The log reports: No graphable layers"
    assert messages["log-straggler"] == "The log reports: some GPUs performance dropped: ranks 3"
    fine = analyze(tmp_path / "trace.sqlite", logs=log_of(tmp_path, "12 graphable layers."))
    assert "log-cuda-graphs" not in codes(fine)
