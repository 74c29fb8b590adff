"""Reading an export: identities, missing parts, odd rows; the file itself is never touched."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from trace_builder import ADAM, GEMM, MEGATRON, PROCESS, TraceBuilder, merge

from three_walls import analyze
from three_walls.lib.errors import InputError, NothingToAnalyzeError
from three_walls.report.json_report import render_json
from three_walls.report.report import Report

pytestmark = pytest.mark.slow


def codes(report: Report) -> set[str]:
    return {warning.code for warning in report.warnings}


def test_the_input_is_not_changed_also_where_nothing_may_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    directory.mkdir()
    path = TraceBuilder().steps(4).write(directory / "trace.sqlite")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    path.chmod(stat.S_IRUSR)
    directory.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        report = analyze(path)
    finally:
        directory.chmod(stat.S_IRWXU)
    assert [entry.name for entry in directory.iterdir()] == ["trace.sqlite"]  # no journal, no index, no lock
    assert report.inputs[0].sha256 == before == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_path_with_characters_of_a_uri_is_only_a_path(tmp_path: Path) -> None:
    directory = tmp_path / "100% of? #1 räume"
    directory.mkdir()
    assert analyze(TraceBuilder().steps(4).write(directory / "a?mode=rwc.sqlite")).step.kept == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_rows_changes_nothing(tmp_path: Path, seed: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sorted_rows = analyze(TraceBuilder().steps(5).write(tmp_path / "a" / "t.sqlite"))
    shuffled = analyze(TraceBuilder().steps(5).write(tmp_path / "b" / "t.sqlite", shuffle=seed))
    hashed = shuffled.inputs[0].sha256
    assert render_json(shuffled).replace(hashed, sorted_rows.inputs[0].sha256) == render_json(sorted_rows)


def test_a_process_without_nccl_is_no_rank_where_another_runs_nccl(tmp_path: Path) -> None:
    training = TraceBuilder().steps(4)
    training.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 700, 750)
    rival = TraceBuilder(process=PROCESS + (1 << 24), strings=training.strings).steps(4)
    alone = analyze(merge(tmp_path / "training.sqlite", training))
    shared = analyze(merge(tmp_path / "shared.sqlite", training, rival))
    assert "other-process-on-gpu" in codes(shared)
    assert "other-process-on-gpu" not in codes(alone)
    assert len(shared.ranks) == len(alone.ranks) == 1


def test_two_processes_on_device_0_with_the_same_correlation_ids_stay_apart(tmp_path: Path) -> None:
    # One process per rank under CUDA_VISIBLE_DEVICES: both call their GPU device 0, both count from 1.
    first = TraceBuilder().steps(4)
    second = TraceBuilder(process=PROCESS + (1 << 24), strings=first.strings)
    for at in (1, 1001, 2001, 3001):
        second.kernel(GEMM, at, at + 300, launched=max(at - 5, 0))
        second.kernel(ADAM, at + 900, at + 1000, launched=at + 700)
    together = analyze(merge(tmp_path / "both.sqlite", first, second))
    alone = [analyze(builder.write(tmp_path / f"{name}.sqlite")) for name, builder in (("a", first), ("b", second))]
    assert [rank.device for rank in together.ranks] == [0, 0]
    assert [rank.budget for rank in together.ranks] == [report.ranks[0].budget for report in alone]
    assert together.ranks[1].budget["launch_starved"] == 400
    assert "rank-not-in-trace" in codes(together)


def test_separate_reports_give_what_one_report_of_both_processes_gives(tmp_path: Path) -> None:
    first = TraceBuilder().steps(4)
    second = TraceBuilder(process=PROCESS + (1 << 24), strings=first.strings).steps(4)
    together = analyze(merge(tmp_path / "both.sqlite", first, second))
    apart = analyze([first.write(tmp_path / "a.sqlite"), second.write(tmp_path / "b.sqlite")])
    assert [rank.steps for rank in apart.ranks] == [rank.steps for rank in together.ranks]


def test_two_hosts_may_use_the_same_process_and_thread_numbers(tmp_path: Path) -> None:
    late = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        late.kernel(GEMM, at, at + 300).kernel(ADAM, at + 900, at + 1000, launched=at + 700)
    syncing = TraceBuilder().steps(4).api("cudaDeviceSynchronize_v3020", 1, 4000)
    apart = analyze([late.write(tmp_path / "a.sqlite"), syncing.write(tmp_path / "b.sqlite")])
    assert apart.ranks[0].budget["launch_starved"] == 400  # the other host's synchronizing blocks nobody here


def test_the_rank_is_the_launchers_not_the_devices(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4).launched_as("train.py", RANK="13", LOCAL_RANK="5")
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    assert [(rank.rank, rank.device, rank.host, rank.gpu) for rank in report.ranks] == [(13, 0, "node0", "NVIDIA H200")]
    assert "rank-not-in-trace" not in codes(report)


@pytest.mark.parametrize("variable", ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_the_rank_of_slurm_or_mpi_counts_where_torchrun_is_not_used(tmp_path: Path, variable: str) -> None:
    builder = TraceBuilder().steps(4).launched_as("train.py", **{variable: "7"})
    assert analyze(builder.write(tmp_path / "trace.sqlite")).ranks[0].rank == 7


def test_two_captures_of_one_rank_are_refused(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4).launched_as("train.py", RANK="3")
    with pytest.raises(InputError, match=r"a\.sqlite and b\.sqlite: expected captures of one run.*both are of rank 3"):
        analyze([builder.write(tmp_path / "a.sqlite"), builder.write(tmp_path / "b.sqlite")])


def test_refused_captures_of_one_name_are_named_with_their_folders(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4).launched_as("train.py", RANK="3")
    for run in ("before", "after"):
        (tmp_path / run).mkdir()
    with pytest.raises(InputError, match=r"^before/rank3\.sqlite and after/rank3\.sqlite: expected"):
        analyze([builder.write(tmp_path / run / "rank3.sqlite") for run in ("before", "after")])


def test_captures_without_the_launchers_rank_are_numbered_and_not_refused(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4)
    report = analyze([builder.write(tmp_path / "a.sqlite"), builder.write(tmp_path / "b.sqlite")])
    assert [rank.rank for rank in report.ranks] == [0, 1]


def test_ranks_of_different_hosts_are_of_one_run(tmp_path: Path) -> None:
    traces = [
        TraceBuilder().steps(4).launched_as(MEGATRON, SLURM_PROCID=rank, SLURM_NODEID=rank).write(tmp_path / rank)
        for rank in ("0", "1")
    ]
    assert "environments-differ" not in codes(analyze(traces))


def test_ranks_of_runs_with_other_settings_are_refused(tmp_path: Path) -> None:
    first = TraceBuilder().steps(4).launched_as(f"{MEGATRON} --expert-model-parallel-size 8", RANK="0")
    second = TraceBuilder().steps(4).launched_as(f"{MEGATRON} --expert-model-parallel-size 4", RANK="1")
    with pytest.raises(InputError, match="expert_model_parallel_size is 8 in the first and 4 in the second"):
        analyze([first.write(tmp_path / "a.sqlite"), second.write(tmp_path / "b.sqlite")])


def test_ranks_of_runs_of_other_sizes_are_refused(tmp_path: Path) -> None:
    first = TraceBuilder().steps(4).launched_as(MEGATRON, RANK="0", WORLD_SIZE="8")
    second = TraceBuilder().steps(4).launched_as(MEGATRON, RANK="1", WORLD_SIZE="16")
    with pytest.raises(InputError, match="WORLD_SIZE is 8 in the first and 16 in the second"):
        analyze([first.write(tmp_path / "a.sqlite"), second.write(tmp_path / "b.sqlite")])


@pytest.mark.parametrize(
    ("hosts", "seconds", "is_refused"),
    [
        (("a", "b"), 50, False),
        (("a", "b"), 70, True),
        (("a", "b"), -70, True),
        (("a", "a"), 4, False),
        (("a", "a"), 8, True),
        (("a", "a"), -8, True),
    ],
)
def test_captures_of_other_times_are_of_two_runs(
    tmp_path: Path, hosts: tuple[str, str], seconds: int, is_refused: bool
) -> None:
    begin_ns = 1_700_000_000_000_000_000
    traces = [
        TraceBuilder(session_start_ns=start_ns, host=host).steps(4).write(tmp_path / f"{start_ns}.sqlite")
        for start_ns, host in zip((begin_ns, begin_ns + seconds * 1_000_000_000), hosts, strict=True)
    ]
    with pytest.raises(InputError, match=f"{abs(seconds)} s lie between them") if is_refused else nullcontext():
        analyze(traces)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            {"CUDA_DEVICE_MAX_CONNECTIONS": "32"},
            "is 1 in the first and 32 in the",
        ),
        ({}, {"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE is unset in the first and 1 in the second"),
    ],
)
def test_ranks_whose_environments_contradict_each_other_are_refused(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        analyze(write_ranks(tmp_path, first, second))


@pytest.mark.parametrize(
    ("variable", "value"), [("NCCL_IB_HCA", "mlx5_0"), ("NCCL_SOCKET_IFNAME", "eth0"), ("NCCL_DEBUG", "WARN")]
)
def test_ranks_with_other_variables_are_noticed(tmp_path: Path, variable: str, value: str) -> None:
    report = analyze(write_ranks(tmp_path, {}, {variable: value}))
    assert variable in next(w.message for w in report.warnings if w.code == "environments-differ")


def test_a_trace_without_an_environment_contradicts_none(tmp_path: Path) -> None:
    launched = (
        TraceBuilder().steps(4).launched_as(MEGATRON, RANK="1", NCCL_P2P_DISABLE="1").write(tmp_path / "1.sqlite")
    )
    report = analyze([TraceBuilder().steps(4).write(tmp_path / "0.sqlite"), launched])
    assert "environments-differ" in codes(report)


def write_ranks(folder: Path, *environments: dict[str, str]) -> list[Path]:
    return [
        TraceBuilder().steps(4).launched_as(MEGATRON, RANK=str(rank), **variables).write(folder / f"{rank}.sqlite")
        for rank, variables in enumerate(environments)
    ]


def test_a_mix_of_gpu_models_is_unknown_not_guessed(tmp_path: Path) -> None:
    builder = TraceBuilder(gpus=["NVIDIA H200", "NVIDIA H100 80GB HBM3"]).steps(4)
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    assert report.ranks[0].gpu is None
    assert report.facts.get("gpu.family").is_missing


KERNEL, API = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def test_a_trace_without_api_calls_makes_no_claim_about_the_host(tmp_path: Path) -> None:
    report = analyze(TraceBuilder().steps(4).write(tmp_path / "trace.sqlite", without=(API,)))
    assert report.capabilities["api_calls"].startswith("no table CUPTI_ACTIVITY_KIND_RUNTIME")
    assert report.facts.get("launch_starved_ns").is_missing
    assert report.verdict.abstained
    assert sum(report.ranks[0].budget.values()) == 1000


@pytest.mark.parametrize(
    "lacking",
    [
        f"{KERNEL}.graphNodeId",
        f"{KERNEL}.globalPid",
        f"{KERNEL}.deviceId",
        f"{KERNEL}.streamId",
        f"{API}.globalTid",
        f"{KERNEL}.shortName",
        f"{API}.correlationId",
        "CUPTI_ACTIVITY_KIND_MEMCPY.srcKind",
        "NVTX_EVENTS.text",
        "NVTX_EVENTS.textId",
    ],
)
def test_a_missing_column_is_a_lack_of_evidence_not_a_crash(tmp_path: Path, lacking: str) -> None:
    builder = TraceBuilder().steps(4).copy(1, 610, 620, launched=5).nvtx("something", 1, 2)
    report = analyze(builder.write(tmp_path / "trace.sqlite", without=(lacking,)))
    assert sum(report.ranks[0].budget.values()) == 1000


def test_without_process_ids_launches_still_join_where_there_is_one_process(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        builder.kernel(GEMM, at, at + 300, launched=max(at - 5, 0)).kernel(ADAM, at + 900, at + 1000, launched=at + 700)
    report = analyze(builder.write(tmp_path / "trace.sqlite", without=(f"{KERNEL}.globalPid",)))
    assert report.ranks[0].budget["launch_starved"] == 400


def test_operations_that_could_not_be_timed_are_left_out_and_counted(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4).kernel(GEMM, 0, 0).kernel(GEMM, 500, 400)
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    assert "2 device operations" in next(w.message for w in report.warnings if w.code == "untimed-operations")


def test_secrets_are_named_never_shown(tmp_path: Path) -> None:
    builder = (
        TraceBuilder().steps(4).launched_as("train.py", RANK="0", WANDB_API_KEY="hunter2hunter2", NCCL_DEBUG="INFO")
    )
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    text = render_json(report)
    assert "WANDB_API_KEY" in text
    assert "hunter2" not in text
    assert report.config.environment["NCCL_DEBUG"].value == "INFO"


def test_graphs_recorded_whole_leave_their_inside_unknown(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        builder.graph(at, at + 800, launched=max(at - 5, 0)).kernel(ADAM, at + 900, at + 1000, launched=at + 2)
    report = analyze(builder.write(tmp_path / "trace.sqlite"), settings=["num_moe_experts=8"])
    assert report.ranks[0].budget["cuda_graph"] == 800
    assert report.verdict.abstained
    assert "--cuda-graph-trace=node" in report.verdict.reason
    assert report.facts.get("launch_starved_ns").is_missing


def test_kernels_of_a_graph_that_were_recorded_win_over_its_envelope(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for at in (1, 1001, 2001, 3001):
        builder.graph(at, at + 800, launched=max(at - 5, 0)).kernel(GEMM, at, at + 700, node=4)
        builder.kernel(ADAM, at + 900, at + 1000, launched=at + 2)
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    owned = report.ranks[0].budget
    assert (owned["gemm"], owned["cuda_graph"]) == (700, 100)
    assert report.facts.number("graph_kernel_fraction") == 0.5  # the product, not the update


def test_without_node_ids_nothing_is_known_of_graphs(tmp_path: Path) -> None:
    report = analyze(TraceBuilder().steps(4).write(tmp_path / "trace.sqlite", without=(f"{KERNEL}.graphNodeId",)))
    assert "graphNodeId" in str(report.facts.get("graph_kernel_fraction").missing_reason)


def test_graphs_that_an_old_exporter_left_out_forbid_claims_about_idle_time(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4)
    for at in (1, 1001, 2001, 3001):
        builder.api("cudaGraphLaunch_v10000", at + 610, at + 611)
    report = analyze(builder.write(tmp_path / "trace.sqlite"))
    assert "inside-cuda-graphs" in codes(report)
    assert report.facts.get("host_idle_ns").is_missing


def test_a_database_of_something_else_is_no_export(tmp_path: Path) -> None:
    path = tmp_path / "books.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE books (title)")
    with pytest.raises(InputError, match="expected an export of Nsight Systems"):
        analyze(path)


def test_a_truncated_database_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = TraceBuilder().steps(400).write(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError) as caught:
        analyze(path)
    assert "damaged" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_export_without_kernels_has_nothing_to_analyze(tmp_path: Path) -> None:
    path = TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "trace.sqlite")
    with pytest.raises(NothingToAnalyzeError, match="expected CUDA kernels, found none"):
        analyze(path)


def test_a_rank_without_kernels_is_left_out_next_to_one_that_has_some(tmp_path: Path) -> None:
    idle = TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "a.sqlite")
    busy = TraceBuilder().steps(4).write(tmp_path / "b.sqlite")
    report = analyze([idle, busy])
    assert len(report.ranks) == 1
    assert "no-kernels" in codes(report)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    path = TraceBuilder().steps(2).write(tmp_path / "trace.sqlite")
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        analyze(path)
