"""What a capture can support, and what not: the negative next to the positive."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, MEGATRON, PROCESS, TraceBuilder

from tests.paths import SAMPLES
from three_walls.capture.capture_guide import capture_rules
from three_walls.capture.judge_capture import JUDGES, Answer, examine
from three_walls.cli.doctor import format_examination, render_examination
from three_walls.lib.errors import InputError

pytestmark = pytest.mark.slow


def whole(rank: int = 0, world: int = 1, begins_ns: int = 0) -> TraceBuilder:
    """A capture that has what a synthetic one can have."""
    builder = TraceBuilder(session_start_ns=1_700_000_000_000_000_000 + begins_ns).steps(5, length=1000)
    builder.launched_as(MEGATRON, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    for step in range(5):
        builder.nvtx(f"training_step_{step}", max(1000 * step - 10, 1), 1000 * step + 985)
    builder.nvtx("aten::mm, op_id = 1, sizes = [[4, 8], [8, 2]]", 5, 9)
    return builder.record_event(1, 7, 20, sync=4).wait_event(1, 8, 30, sync=4)


def answers(*paths: Path) -> dict[str, str]:
    return {check.name: check.answer.value for check in examine(paths).checks}


def found(name: str, *paths: Path) -> str:
    return next(check.found for check in examine(paths).checks if check.name == name)


def add_messages(path: Path, *texts: str) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp, severity, text)")
        database.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 1, ?)", [(text,) for text in texts])
    return path


def test_there_is_a_judge_for_every_capability_and_no_other() -> None:
    assert list(JUDGES) == list(capture_rules().capabilities)


def test_a_good_capture_supports_everything(tmp_path: Path) -> None:
    path = add_messages(whole().write(tmp_path / "rank0.sqlite"), "Number of CUDA events collected: 12.")
    answer_of = answers(path)
    lacking = {name for name, answer in answer_of.items() if answer != "yes"}
    assert lacking == {"nccl_payload", "memory_usage", "hardware_counters"}


def test_hardware_counters_are_sampled_or_the_profiler_states_why_not(tmp_path: Path) -> None:
    sampled = whole().samples({"SMs Active [Throughput %]": [1, 2]}).write(tmp_path / "sampled.sqlite")
    assert answers(sampled)["hardware_counters"] == "yes"
    without = whole().write(tmp_path / "without.sqlite")
    assert "--gpu-metrics-devices" in found("hardware_counters", without)
    refusal = "ERR_NVGPUCTRPERM: The user does not have permission to access GPU Performance Counters."
    refused = add_messages(whole().write(tmp_path / "refused.sqlite"), "Number of CUDA events: 12.", refusal)
    assert "does not have permission" in found("hardware_counters", refused)
    assert "Number" not in found("hardware_counters", refused)


@pytest.mark.parametrize(
    ("lacking", "name"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "kernels"),
        ("NVTX_EVENTS", "training_steps"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "launches"),
        ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "event_edges"),
    ],
)
def test_a_table_that_is_missing_takes_its_capability_with_it(tmp_path: Path, lacking: str, name: str) -> None:
    with_it = whole().write(tmp_path / "with.sqlite")
    without = whole().write(tmp_path / "without.sqlite", without=(lacking,))
    assert (answers(with_it)[name], answers(without)[name]) == ("yes", "no")


@pytest.mark.parametrize(
    ("text", "answer"), [("aten::mm, op_id = 1, sizes = [[4, 8], [8, 2]]", "yes"), ("aten::mm, op_id = 1", "no")]
)
@pytest.mark.parametrize("inline", [True, False])
def test_operators_count_with_their_sizes_only(tmp_path: Path, text: str, answer: str, inline: bool) -> None:
    path = TraceBuilder().steps(4).nvtx(text, 5, 9, inline=inline).write(tmp_path / "trace.sqlite")
    assert answers(path)["operator_sizes"] == answer


def test_two_captured_steps_leave_no_clean_one_and_four_leave_two(tmp_path: Path) -> None:
    two = TraceBuilder().steps(2).write(tmp_path / "two.sqlite")
    four = TraceBuilder().steps(4).kernel(GEMM, 4100, 4200).write(tmp_path / "four.sqlite")
    assert (answers(two)["clean_steps"], answers(four)["clean_steps"]) == ("no", "yes")


def test_a_launch_without_settings_or_environment_is_reported(tmp_path: Path) -> None:
    path = TraceBuilder().steps(4).write(tmp_path / "trace.sqlite")
    answer_of = answers(path)
    assert (answer_of["command_line"], answer_of["environment"], answer_of["ranks_known"]) == ("no", "no", "no")
    assert answer_of["all_ranks"] == "unknown"


def test_captured_ranks_are_counted_against_the_world(tmp_path: Path) -> None:
    for rank in (0, 1):
        whole(rank, world=4).write(tmp_path / f"rank{rank}.sqlite")
    assert answers(tmp_path)["all_ranks"] == "no"
    assert found("all_ranks", tmp_path) == "2 of 4 captured"
    missing = next(check for check in examine([tmp_path]).checks if check.name == "all_ranks")
    assert missing.megatron_lm == ("--profile", "--profile-ranks", "0", "1", "2", "3")


def test_two_reports_of_the_same_rank_are_not_of_one_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        whole(0, world=2).write(tmp_path / f"{name}.sqlite")
    assert answers(tmp_path)["ranks_known"] == "no"


@pytest.mark.parametrize(("apart_ns", "answer"), [(0, "yes"), (100, "yes"), (101, "no")])
def test_captures_that_begin_a_tenth_of_a_step_apart_are_skewed(tmp_path: Path, apart_ns: int, answer: str) -> None:
    whole(0, world=2).write(tmp_path / "rank0.sqlite")
    whole(1, world=2, begins_ns=apart_ns).write(tmp_path / "rank1.sqlite")
    assert answers(tmp_path)["start_skew"] == answer


def test_clocks_of_two_hosts_show_nothing_about_a_skew(tmp_path: Path) -> None:
    whole(0, world=2).write(tmp_path / "rank0.sqlite")
    other = whole(1, world=2)
    other.host = "node1"
    other.write(tmp_path / "rank1.sqlite")
    assert answers(tmp_path)["start_skew"] == "unknown"


def test_of_a_message_only_plain_words_are_repeated(tmp_path: Path) -> None:
    message = "14 records were dropped by hunter2, see /home/alice/x, token hf_AbCdEfGhIjKlMnOp"
    path = add_messages(whole().write(tmp_path / "a.sqlite"), message)
    check = next(check for check in examine([path]).checks if check.name == "no_drops")
    assert check.found == "14 records were dropped by <word>, see <path>, token <key>"


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("Reached the size limit on recording trace events for this process.", "no"),
        ("14 CUDA records were dropped", "no"),
        ("Not all CUDA events might have been collected.", "yes"),
        ("Profiling has started.", "yes"),
    ],
)
def test_dropped_events_are_distinguished_from_the_usual_messages(tmp_path: Path, message: str, answer: str) -> None:
    assert answers(add_messages(whole().write(tmp_path / "a.sqlite"), message))["no_drops"] == answer


def test_without_messages_nothing_is_known_about_drops(tmp_path: Path) -> None:
    assert answers(whole().write(tmp_path / "a.sqlite"))["no_drops"] == "unknown"


@pytest.mark.parametrize(("delay_ns", "answer"), [(60, "yes"), (61, "no")])
def test_a_profiler_that_delays_the_program_is_measured_on_kept_steps(
    tmp_path: Path, delay_ns: int, answer: str
) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001, 4001):  # three of five are kept: 3000 ns, of which a fiftieth is 60
        builder.kernel(GEMM, at, at + 600, launched=at).kernel(ADAM, at + 800, at + 1000, launched=at + 1)
    builder.overhead(2001, 2001 + delay_ns).overhead(10, 500)  # the second lies in a dropped step
    assert answers(builder.write(tmp_path / "a.sqlite"))["profiler_overhead"] == answer


def test_graphs_recorded_whole_ask_for_nodes(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        builder.graph(at, at + 800, launched=max(at - 5, 0)).kernel(ADAM, at + 900, at + 1000, launched=at + 2)
    examination = examine([builder.write(tmp_path / "a.sqlite")])
    graphs = next(check for check in examination.checks if check.name == "graph_nodes")
    assert graphs.answer is Answer.NO
    assert graphs.nsys == ("--cuda-graph-trace=node",)
    assert "--cuda-graph-trace=node" in (examination.recapture or "")


def test_without_any_kernel_the_examination_still_states_what_is_missing(tmp_path: Path) -> None:
    path = TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "a.sqlite")
    examination = examine([path])
    assert examination.ranks == 0
    assert answers(path)["kernels"] == "no"


def test_two_processes_in_one_report_are_not_distinguished_by_rank() -> None:
    assert answers(SAMPLES / "two-processes-one-report.sqlite.xz")["ranks_known"] == "no"


def test_the_command_and_the_claims_are_shown_for_what_is_missing_alone(tmp_path: Path) -> None:
    examination = examine([whole().write(tmp_path / "a.sqlite")])
    text = format_examination(examination)
    assert "--cuda-memory-usage=true" in text
    assert "nsys profile" in text
    assert "launch-starved" not in text  # nothing is wrong with launches
    assert all(len(line) <= 100 or "profil" in line for line in text.splitlines())


def test_the_json_contains_every_check_and_no_directory(tmp_path: Path) -> None:
    read = json.loads(render_examination(examine([whole().write(tmp_path / "a.sqlite")])))
    assert [check["name"] for check in read["checks"]] == list(JUDGES)
    assert str(tmp_path) not in json.dumps(read)
    assert {check["remedy"] is None for check in read["checks"] if check["answer"] == "yes"} == {True}


def test_a_file_that_is_no_export_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_text("hello")
    with pytest.raises(InputError):
        examine([tmp_path / "a.sqlite"])


def test_overhead_of_another_process_is_not_this_ranks(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(5)
    other = TraceBuilder(process=PROCESS + (1 << 24), strings=builder.strings).overhead(1001, 1900)
    builder.rows |= other.rows
    assert answers(builder.write(tmp_path / "a.sqlite"))["profiler_overhead"] == "yes"
