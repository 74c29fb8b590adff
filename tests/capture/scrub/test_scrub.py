"""Scrubbing removes what identifies people and machines, and leaves the analysis as it was."""

from __future__ import annotations

import json
import lzma
import re
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zstandard
from trace_builder import GEMM, PROCESS, TraceBuilder, merge

from tests.capture.scrub.conftest import SECRETS, plant
from tests.paths import MEASURED_BASES, SAMPLES, is_open
from three_walls import analyze
from three_walls.capture.scrub import scrub_export as scrubbing
from three_walls.capture.scrub.scrub_export import open_new, scrub
from three_walls.lib.errors import InputError, UsageError
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.overrides_file import render_overrides
from three_walls.trace.nccl_payload import read_nccl_calls
from three_walls.trace.nsys_export import NsysExport

pytestmark = pytest.mark.slow


def comparable(path: Path) -> dict[str, Any]:
    """The report without what must differ: names of files, hosts and threads, hashes, texts of ranges, the warning.

    A range's text may hold words that are not on the list, such as the hash of a compiled graph: each becomes another.
    """
    report: dict[str, Any] = json.loads(render_json(analyze(path)))
    del report["inputs"]
    for rank in report["ranks"]:
        del rank["host"], rank["input_name"]
    for row in report["host_work"]:
        del row["range"]
    for frame in report["host_frames"]:
        del frame["name"]
    if report["timeline"]:
        del report["timeline"]["texts"]
        for lane in (lane for rank in report["timeline"]["ranks"] for lane in rank["lanes"]):
            lane["name"] = re.sub(r"^(thread \d+) .+", r"\1", lane["name"])
    report["warnings"] = [warning for warning in report["warnings"] if warning["code"] != "secrets-in-trace"]
    return report


def texts_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database, database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
        return {str(cell) for table in tables for row in database.execute(f'SELECT * FROM "{table}"') for cell in row}


@pytest.mark.parametrize("place", SECRETS)
def test_nothing_planted_survives(planted: Path, tmp_path: Path, place: str) -> None:
    scrub(planted, tmp_path / "out.sqlite")
    data = (tmp_path / "out.sqlite").read_bytes()
    assert SECRETS[place].encode() not in data
    assert b"alice" not in data


def test_the_planted_secrets_were_there_before(planted: Path) -> None:
    assert all(secret.encode() in planted.read_bytes() for secret in SECRETS.values())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the analysis of the capture with secrets shows."""
    report = analyze(plant(tmp_path_factory.mktemp("planted") / "rank0.sqlite"))
    return render_json(report) + render_html(report) + render_overrides(report)


@pytest.mark.parametrize("place", SECRETS)
def test_analysis_never_shows_what_is_not_on_the_list(shown: str, place: str) -> None:
    assert place == "host" or SECRETS[place] not in shown  # the rank's host is shown, by its name


def test_the_warning_names_secrets_of_every_process_and_how_to_remove_them(planted: Path, tmp_path: Path) -> None:
    warning = next(found.message for found in analyze(planted).warnings if found.code == "secrets-in-trace")
    assert "AWS_SECRET_ACCESS_KEY, HF_TOKEN, WANDB_API_KEY" in warning
    assert "three-walls scrub" in warning
    scrub(planted, tmp_path / "out.sqlite")
    assert "secrets-in-trace" not in {warning.code for warning in analyze(tmp_path / "out.sqlite").warnings}


def test_settings_and_names_that_analysis_reads_stay(planted: Path, tmp_path: Path) -> None:
    scrub(planted, tmp_path / "out.sqlite")
    kept = texts_in(tmp_path / "out.sqlite")
    assert {GEMM, "training_step_7", "aten::mm, seq = 3, op_id = 0, sizes = [[1, 2], []]", 'NCCL_DEBUG="INFO"'} <= kept
    assert {"pretrain_gpt.py", "--num-experts", "range-1", 'NCCL_TOPO_FILE="removed"'} <= kept
    assert "--wandb-api-key" not in kept
    assert comparable(tmp_path / "out.sqlite") == comparable(planted)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("wide-nvlink-alltoall.sqlite", marks=pytest.mark.exhaustive),
        "cuda-graph-envelopes.sqlite.xz",
        "two-processes-one-report.sqlite.xz",
    ],
)
def test_a_real_trace_is_analyzed_alike(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.sqlite"
    scrub(SAMPLES / name, out)
    assert comparable(out) == comparable(SAMPLES / name)


def test_every_operator_of_a_real_trace_stays_with_its_sizes(tmp_path: Path) -> None:
    scrub(SAMPLES / "wide-nvlink-alltoall.sqlite", tmp_path / "out.sqlite")

    def operators(path: Path) -> list[str]:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            texts = database.execute(
                "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
                "WHERE coalesce(text, value) LIKE '%sizes = [[%' ORDER BY start, globalTid"
            )
            return [re.sub(r", input_op_ids = .*", "", re.sub(r"op_id = \d+", "op_id = 0", text)) for (text,) in texts]

    before = operators(SAMPLES / "wide-nvlink-alltoall.sqlite")
    assert len(before) > 1000
    assert operators(tmp_path / "out.sqlite") == before


KEPT_STEPS = {"mixtral-shape.sqlite.xz": (1, 3), "wide-fused": (2, 3), "foreign-moe-named-steps.sqlite.xz": (1, 3)}
"""By optimizer updates, of several ranks, and by named ranges; the first and the one after the last."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (not name.startswith("foreign"))) for name in KEPT_STEPS],
)
def test_steps_alone_are_attributed_as_in_the_whole_capture(tmp_path: Path, name: str) -> None:
    source = MEASURED_BASES / name if name == "wide-fused" else SAMPLES / name
    target = tmp_path / name
    scrub(source, target, steps=KEPT_STEPS[name])

    def budgets(path: Path) -> dict[int, list[dict[str, int]]]:
        report = analyze(path)
        return {rank.rank: [dict(step.budget) for step in rank.steps if step.kept] for rank in report.ranks}

    whole, alone = budgets(source), budgets(target)
    first, after = KEPT_STEPS[name]
    assert alone == {rank: steps[first - 1 : after - 1] for rank, steps in whole.items()}
    captures = [(each, target / each.name) for each in source.glob("*.xz")] if source.is_dir() else [(source, target)]
    assert all(2 * short.stat().st_size < 1.5 * long.stat().st_size for long, short in captures)


@pytest.mark.parametrize("steps", [(0, 2), (2, 9), (2, 2)], ids=["cut off", "not there", "none"])
def test_steps_that_a_capture_does_not_hold_whole_are_refused(tmp_path: Path, steps: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=r"expected steps that it holds whole \(1, 2\), found"):
        scrub(SAMPLES / "mixtral-shape.sqlite.xz", tmp_path / "out.sqlite", steps=steps)
    assert not (tmp_path / "out.sqlite").exists()


def test_a_capture_that_shows_no_steps_cannot_be_cut_to_some(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a capture that shows its steps"):
        scrub(SAMPLES / "foreign-inference.sqlite.xz", tmp_path / "out.sqlite", steps=(1, 2))


def test_calls_stay_with_the_kernels_that_they_launched_and_run_when_the_first_step_begins(tmp_path: Path) -> None:
    """Steps take 1,000 ns. The update of step 1, launched at 998 with correlation 4, ends where step 2 begins."""
    builder, target = TraceBuilder().steps(4), tmp_path / "out.sqlite"
    builder.api("cudaEventQuery_v3020", 990, 991)
    builder.api("cudaLaunchKernel_v7000", 992, 993, correlation=4, thread=builder.thread + (1 << 24))
    scrub(builder.write(tmp_path / "whole.sqlite"), target, steps=(2, 3))
    with closing(sqlite3.connect(target)) as database:
        calls = database.execute("SELECT start, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start")
        assert calls.fetchall() == [(998, 4), (1996, 5), (1998, 6), (2996, 7), (2998, 8)]


def with_guest(path: Path, device: int) -> Path:
    """Four steps on device 0, of 1,000 ns each, and kernels of another process on ``device`` at the end of each."""
    training = TraceBuilder().steps(4)
    guest = TraceBuilder(process=PROCESS + (1 << 24), device=device, strings=training.strings)
    for end in (1000, 2000, 3000, 4000):
        training.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", end - 300, end - 250)
        guest.kernel(GEMM, end - 50, end)
    return merge(path, training, guest)


def test_steps_of_a_gpu_that_another_process_uses_are_cut_with_its_kernels(tmp_path: Path) -> None:
    source, target = with_guest(tmp_path / "shared.sqlite", device=0), tmp_path / "out.sqlite"
    scrub(source, target, steps=(2, 3))
    whole, alone = analyze(source), analyze(target)
    assert [step.budget for step in alone.ranks[0].steps if step.kept] == [whole.ranks[0].steps[2].budget]
    assert "other-process-on-gpu" in {warning.code for warning in alone.warnings}


def test_a_process_without_steps_on_a_gpu_of_its_own_may_be_a_rank(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a capture that shows its steps"):
        scrub(with_guest(tmp_path / "apart.sqlite", device=1), tmp_path / "out.sqlite", steps=(2, 3))


def test_ranks_of_one_run_scrubbed_together_still_share_their_host(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    plant(run / "rank0.sqlite", host="dgx-a")
    plant(run / "rank1.sqlite", host="dgx-a")
    plant(run / "rank2.sqlite", host="dgx-b")
    done = scrub(run, tmp_path / "out")
    assert [summary.host for summary in done] == ["host-1", "host-1", "host-2"]


def test_hosts_scrubbed_separately_are_never_taken_for_the_same_host(tmp_path: Path) -> None:
    first = plant(tmp_path / "a.sqlite", host="dgx-a", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8")
    other = plant(tmp_path / "b.sqlite", host="dgx-b", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8")
    known = plant(tmp_path / "c.sqlite", host="dgx-b", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8", GROUP_RANK="1")
    alone = plant(tmp_path / "d.sqlite", host="dgx-b", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8")
    names = [scrub(path, tmp_path / f"{path.stem}-out.sqlite")[0].host for path in (first, other, known, alone)]
    assert names[0] != names[1]
    assert names[2:] == ["host-2", "host-1"]


def test_scrubbing_twice_changes_nothing_more_and_the_same_input_gives_the_same_bytes(
    planted: Path, tmp_path: Path
) -> None:
    for name in ("a.sqlite", "b.sqlite"):
        scrub(planted, tmp_path / name)
    assert (tmp_path / "a.sqlite").read_bytes() == (tmp_path / "b.sqlite").read_bytes()
    scrub(tmp_path / "a.sqlite", tmp_path / "again.sqlite")
    assert comparable(tmp_path / "again.sqlite") == comparable(tmp_path / "a.sqlite")


def test_the_input_is_never_changed_and_never_written_to(planted: Path, tmp_path: Path) -> None:
    before = planted.read_bytes()
    with pytest.raises(UsageError, match="found the input itself"):
        scrub(planted, planted, force=True)
    link = tmp_path / "link.sqlite"
    link.symlink_to(planted)
    with pytest.raises(UsageError, match="found the input itself"):
        scrub(planted, link, force=True)
    scrub(planted, tmp_path / "out.sqlite")
    assert planted.read_bytes() == before


def test_an_existing_file_stays_without_force(planted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        scrub(planted, out)
    assert out.read_text() == "mine"
    scrub(planted, out, force=True)
    assert comparable(out)["step"]["kept"] == 2


@pytest.mark.parametrize(("suffix", "unpack"), [(".xz", lzma.decompress), (".zst", None)])
def test_the_output_is_compressed_as_its_name_asks(planted: Path, tmp_path: Path, suffix: str, unpack: Any) -> None:
    plain, packed = tmp_path / "out.sqlite", tmp_path / f"out.sqlite{suffix}"
    scrub(planted, plain)
    scrub(planted, packed)
    data = packed.read_bytes()
    unpacked = unpack(data) if unpack else zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert unpacked == plain.read_bytes()


def test_a_value_that_is_still_there_deletes_the_result(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "scan_for_leaks", lambda *_: (9, 1))
    with pytest.raises(InputError, match="1 of 9 removed values"):
        scrub(planted, tmp_path / "out.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.sqlite"]


def test_the_summary_contains_names_and_counts_never_values(planted: Path, tmp_path: Path) -> None:
    (done,) = scrub(planted, tmp_path / "out.sqlite")
    assert done.left_out.tables == {"ANALYSIS_FILE": 1, "NEW_IN_2030": 1, "PROCESSES": 1}
    assert {"AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "WANDB_API_KEY"} <= set(done.variables)
    assert "NVTX_EVENTS.jsonText" in done.left_out.columns
    assert not [secret for secret in SECRETS.values() if secret in repr(done)]


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "books.sqlite")) as database, database:
        database.execute("CREATE TABLE books (title)")
    with pytest.raises(InputError, match="expected an export"):
        scrub(tmp_path / "books.sqlite", tmp_path / "out.sqlite")
    assert not (tmp_path / "out.sqlite").exists()


def test_a_new_export_that_cannot_be_written_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    path.touch()
    with closing(open_new(path)):
        assert is_open(path)
    assert not is_open(path)
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        open_new(path)
    assert caught.tb is not None  # it keeps the connection alive, so nothing but the program closed it
    assert not is_open(path)


def test_a_truncated_export_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = TraceBuilder().steps(400).write(tmp_path / "whole.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError) as caught:
        scrub(tmp_path / "cut.sqlite", tmp_path / "out.sqlite")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.sqlite", "whole.sqlite"]


def test_of_payloads_only_the_fields_of_nccl_calls_stay(tmp_path: Path) -> None:
    builder = TraceBuilder().steps(4)
    builder.nccl_schema(20, 32, (18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (1, "tag", 16))
    builder.nccl_schema(21, 8, (1, "user of the job", None))
    builder.nccl_call("ncclAllGather", 10, 20, 20, struct.pack("<QQ16s", 7, 64, b"alice"))
    builder.nccl_call("mark", 30, 40, 21, b"alice  ")
    source = builder.write(tmp_path / "trace.sqlite")
    scrub(source, tmp_path / "out.sqlite")
    data = (tmp_path / "out.sqlite").read_bytes()
    assert b"alice" in source.read_bytes()
    assert b"alice" not in data
    assert b"user of the job" not in data

    def calls(path: Path) -> list[tuple[Any, ...]]:
        with NsysExport(path, path) as export:
            return read_nccl_calls(export)[0].select("call_name", "communicator", "message_bytes").rows()

    assert calls(tmp_path / "out.sqlite") == calls(source) == [("ncclAllGather", 7, 64)]
