"""The progress file of a checkpoint directory: its jobs, what counts of them, and what must not."""

from __future__ import annotations

from pathlib import Path

from examples import iteration, read
from trace_builder import ADAM, GEMM, MEGATRON, TraceBuilder

from three_walls import analyze
from three_walls.facts.log_facts import summarize_progress
from three_walls.lib import limits
from three_walls.log.read_log import read_logs
from three_walls.log.training_log import ProgressJob
from three_walls.report.report import Report
from three_walls.report.sections.steps import describe_progress

MS = 1_000_000


def line(what: str, gpus: int = 8, at: str = "2026-07-25 10:00:00", job: str = "4711") -> str:
    return f"{at}\tJob ID: {job}\t# GPUs: {gpus}\t{what}"


def saved(number: int, job: float, cumulative: float, what: str = "Saved checkpoint", unit: str = "TFLOP/s/GPU") -> str:
    return (
        f"{what}\tIteration: {number}\tJob throughput: {job:.1f} {unit}\tCumulative throughput: {cumulative:.1f} {unit}"
        f"\tFloating-point operations: 2.45e+18\tTokens (in billions): {number / 1000:.2f}"
    )


TWO_JOBS = [
    line("Starting job"),
    line(saved(100, 50.0, 50.0)),
    line(saved(200, 55.0, 55.0)),
    line("Starting job", at="2026-07-26 10:00:00"),
    line(saved(300, 52.0, 9.5), at="2026-07-26 11:00:00"),
]


def test_a_job_is_its_start_and_its_last_checkpoint(tmp_path: Path) -> None:
    first, second = read(tmp_path, *TWO_JOBS, name="progress.txt").jobs
    assert first == ProgressJob(8, "2026-07-25 10:00:00", 2, 200, 55.0, 55.0, 200_000_000)
    assert second == ProgressJob(8, "2026-07-26 10:00:00", 1, 300, 52.0, 9.5, 300_000_000)


def test_it_is_recognised_by_its_lines_and_not_by_its_name(tmp_path: Path) -> None:
    assert len(read(tmp_path, *TWO_JOBS, name="what.log").jobs) == 2
    assert read(tmp_path, "2026-07-25 10:00:00 all fine", "# GPUs: 8", name="progress.txt").jobs == ()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "progress.txt").write_text("\n".join(TWO_JOBS))
    assert len(read_logs([tmp_path / "sub"]).jobs) == 2
    assert len(read_logs([tmp_path]).jobs) == 2  # what.log states the same


def test_bridge_and_asynchronous_checkpoints_print_other_words(tmp_path: Path) -> None:
    (job,) = read(
        tmp_path,
        line("Starting job", job=""),
        line(saved(100, 50.0, 40.0, "Saving async checkpoint", "MODEL_TFLOP/s/GPU")),
        line("Saved async checkpoint\tIteration: 100"),
        line("Saved async local checkpoint\tIteration: 110"),
        line("Deleted checkpoint\tIteration: 50"),
    ).jobs
    assert (job.saves_count, job.last_iteration, job.job_tflops_per_gpu) == (1, 100, 50.0)


def test_a_line_cut_anywhere_is_no_checkpoint(tmp_path: Path) -> None:
    whole = line(saved(100, 50.0, 40.0))
    for length in range(len(whole)):
        jobs = read(tmp_path, line("Starting job"), whole[:length]).jobs
        assert jobs == (ProgressJob(8, "2026-07-25 10:00:00"),), length


def test_a_file_that_begins_within_a_job_and_numbers_that_are_none(tmp_path: Path) -> None:
    (job,) = read(tmp_path, line(saved(100, 50.0, 40.0)), line(saved(10**40, 1.0, 1.0))).jobs
    assert (job.started_at, job.last_iteration) == ("", 100)


def test_the_latest_jobs_are_kept(tmp_path: Path) -> None:
    starts = [
        line("Starting job", at=f"2026-07-25 10:{n // 60 % 60:02d}:{n % 60:02d}", gpus=1 + n) for n in range(1_500)
    ]
    jobs = read(tmp_path, *starts).jobs
    assert (len(jobs), jobs[-1].gpus) == (limits.MOST_JOBS, 1_500)


def test_only_jobs_with_as_many_gpus_as_the_run_are_the_runs() -> None:
    jobs = [ProgressJob(8, "a", 1, 10, 50.0, 50.0, 1), ProgressJob(16, "b", 1, 20, 40.0, 30.0, 2), ProgressJob(8, "c")]
    eight, sixteen = (summarize_progress(jobs, world) for world in (8, 16))
    assert eight is not None
    assert sixteen is not None
    assert (eight.jobs, eight.restarts, eight.job_tflops_per_gpu, eight.other_gpus) == (2, 1, 50.0, (16,))
    assert (sixteen.jobs, sixteen.restarts, sixteen.cumulative_tflops_per_gpu) == (1, 0, 30.0)
    assert summarize_progress(jobs, 4) is None
    assert summarize_progress(jobs, None) == eight
    assert summarize_progress([], None) is None


def report_of(tmp_path: Path, progress: list[str], world: str | None = "8") -> Report:
    """Of steps of 100 ms, in the trace and in the log."""
    builder = TraceBuilder()
    for step in range(5):
        at = step * 100 * MS + 1
        builder.kernel(GEMM, at, at + 90 * MS).kernel(ADAM, at + 90 * MS, at + 100 * MS)
    if world:
        builder.launched_as(f"{MEGATRON} --tensor-model-parallel-size 1", RANK="0", WORLD_SIZE=world)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "progress.txt").write_text("".join(f"{line}\n" for line in progress))
    (logs / "train.log").write_text("".join(iteration(n, 100.0) + "\n" for n in range(1, 30)))
    return analyze(builder.write(tmp_path / "trace.sqlite"), logs=logs)


def test_throughput_is_given_next_to_that_of_iterations_and_no_idle_time_is_in_a_step(tmp_path: Path) -> None:
    report = report_of(tmp_path, TWO_JOBS)
    number = report.facts.number
    assert number("log_tflops_per_gpu") == 61.4
    assert number("unprofiled_step_ns") == 100 * MS
    assert report.log is not None
    assert report.log.progress is not None
    assert report.log.progress.job_tflops_per_gpu == 52.0
    assert report.log.progress.cumulative_tflops_per_gpu == 9.5
    assert report.log.progress.restarts == 1
    assert describe_progress(report.log) == (
        "Progress file: 61.4 TFLOP/s per GPU in steady iterations; 52.0 TFLOP/s per GPU since the last job's start "
        "(start-up, evaluation and checkpoints count); 9.5 TFLOP/s since the first job's start (time between jobs "
        "counts too); 1 restart with 8 GPUs; last checkpoint at iteration 300"
    )


def test_the_number_of_gpus_is_a_source_of_the_world_size(tmp_path: Path) -> None:
    report = report_of(tmp_path, TWO_JOBS, world=None)
    assert report.config.sizes["world_size"].source == "progress file"
    assert report.facts.number("world_size") == 8


def test_a_progress_file_of_other_jobs_is_a_contradiction_and_gives_no_throughput(tmp_path: Path) -> None:
    report = report_of(tmp_path, [line("Starting job", gpus=64), line(saved(100, 50.0, 50.0), gpus=64)])
    messages = {warning.code: warning.message for warning in report.warnings}
    assert "WORLD_SIZE is 8, but by the progress file the world has 64 ranks" in messages["layout-contradiction"]
    assert report.log is not None
    assert report.log.progress is None


def test_a_job_with_the_runs_number_of_gpus_is_found_among_others(tmp_path: Path) -> None:
    report = report_of(tmp_path, [*TWO_JOBS, line("Starting job", gpus=64)])
    assert "layout-contradiction" not in {warning.code for warning in report.warnings}
    assert report.log is not None
    assert report.log.progress is not None
    assert report.log.progress.other_gpus == (64,)
