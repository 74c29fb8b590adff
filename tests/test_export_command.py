"""``three-walls export``: what it writes, and how it refuses bad input."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from trace_builder import TraceBuilder

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.paths import SAMPLES
from three_walls.cli import main
from three_walls.cli.export import write_whole


def export(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main.cli, ["export", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return TraceBuilder().steps(5, length=1_000_000).write(tmp_path / "rank0.sqlite")


def read_slices(text: str) -> dict[str, list[dict[str, Any]]]:
    """The slices of the first rank by the name of their track."""
    events = [event for event in json.loads(text)["traceEvents"] if event["pid"] == 1]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


@pytest.mark.slow
def test_the_same_trace_gives_the_same_bytes_plain_and_compressed(trace: Path, tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        done = export(trace, "--out", tmp_path / name)
        assert done.exit_code == 0
        assert done.output.startswith("Wrote ")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


def test_both_formats_are_the_same_file(trace: Path, tmp_path: Path) -> None:
    for name in ("chrome", "perfetto"):
        assert export(trace, "--format", name, "--out", tmp_path / f"{name}.json").exit_code == 0
    assert (tmp_path / "chrome.json").read_bytes() == (tmp_path / "perfetto.json").read_bytes()


def test_no_path_of_the_user_is_in_the_file(trace: Path, tmp_path: Path) -> None:
    export(trace, "--out", tmp_path / "step.json")
    assert str(tmp_path) not in (tmp_path / "step.json").read_text()


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["three-walls", "export", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["rank0.sqlite", "--out", "there.json"], 2, "exists already; choose another name, or replace it with --force"),
        (["rank0.sqlite", "--out", "step.txt"], 2, "expected a name that ends in .json or .json.gz"),
        (["rank0.sqlite", "--out", "folder.json"], 2, "found a directory"),
        (["rank0.sqlite", "--out", "link.json", "--force"], 2, "found a symbolic link"),
        (["rank0.sqlite", "--out", "missing/step.json"], 2, "cannot be written"),
        (["there.json", "--out", "there.json", "--force"], 2, "found an input, which is never changed"),
        (["rank0.sqlite", "--out", "step.json", "--rank", "7"], 2, "expected a rank that captured step"),
        (["rank0.sqlite", "--out", "step.json", "--rank", "-1"], 2, "--rank"),
        (["rank0.sqlite", "--out", "step.json", "--format", "svg"], 2, "--format"),
        (["rank0.sqlite", "--out", "step.json", "--step-range", "("], 2, "--step-range: expected a regular expression"),
        (["none.sqlite", "--out", "step.json"], 3, "no such file"),
        (["there.json", "--out", "step.json"], 3, "there.json"),
        (["empty.sqlite", "--out", "step.json"], 4, "expected CUDA kernels"),
        (["rank0.sqlite"], 2, "--out"),
    ],
)
@pytest.mark.usefixtures("trace")
def test_bad_input_is_one_line_with_its_exit_code_and_writes_nothing(
    arguments: list[str],
    exit_code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    TraceBuilder().api("cudaMalloc_v3020", 1, 2).write(tmp_path / "empty.sqlite")
    Path("there.json").write_text("hello")
    Path("folder.json").mkdir()
    Path("link.json").symlink_to("there.json")
    before = sorted(tmp_path.iterdir())
    assert run_main(monkeypatch, *arguments) == exit_code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert Path("there.json").read_text() == "hello"


def test_force_replaces_a_file(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "step.json"
    target.write_text("hello")
    assert export(trace, "--out", target, "--force").exit_code == 0
    assert json.loads(target.read_text())["traceEvents"]


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_an_interrupted_write_leaves_the_earlier_file_and_nothing_else(tmp_path: Path, name: str) -> None:
    def interrupt() -> Any:
        yield "[" * 1_000_000
        raise KeyboardInterrupt

    (tmp_path / name).write_text("earlier")
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / name, interrupt(), replace=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "earlier"


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample", ["healthy-two-gpus.sqlite.xz", "cuda-graph-envelopes.sqlite.xz", "tensor-parallel-pair"]
)
def test_a_real_step_loads_and_everything_is_inside_of_it(tmp_path: Path, sample: str) -> None:
    assert export(SAMPLES / sample, "--out", tmp_path / "step.json").exit_code == 0
    tracks = read_slices((tmp_path / "step.json").read_text())
    begin_ns = round(tracks["budget"][0]["ts"] * 1000)
    end_ns = round((tracks["budget"][-1]["ts"] + tracks["budget"][-1]["dur"]) * 1000)
    for slices in tracks.values():
        for found in slices:
            start_ns, length_ns = round(found["ts"] * 1000), round(found["dur"] * 1000)
            assert length_ns >= 0
            assert begin_ns <= start_ns <= start_ns + length_ns <= end_ns


@pytest.mark.slow
@reads_sample("healthy-two-gpus.sqlite.xz")
def test_the_tracks_of_a_real_step_sum_to_its_report(tmp_path: Path) -> None:
    sample = SAMPLES / "healthy-two-gpus.sqlite.xz"
    report = analyze_sample(sample.name)
    assert export(sample, "--out", tmp_path / "step.json").exit_code == 0
    tracks = read_slices((tmp_path / "step.json").read_text())
    owned: dict[str, int] = {}
    for found in tracks["budget"]:
        bucket = found["args"]["bucket"]
        owned[bucket] = owned.get(bucket, 0) + round(found["dur"] * 1000)
    assert owned == {row.bucket: row.ns for row in report.budget if row.ns}
    gaps_ns = sum(round(found["dur"] * 1000) for found in tracks["why no compute ran"])
    assert gaps_ns == sum(row.ns for row in report.ranks[0].gap_causes)
    path = tracks["critical path"]
    assert path[0]["ts"] == 0
    for before, after in pairwise(path):
        assert round(before["ts"] * 1000) + round(before["dur"] * 1000) == round(after["ts"] * 1000)


@pytest.mark.slow
@reads_sample("wide-nvlink-alltoall.sqlite")
def test_every_operation_call_and_range_of_the_step_is_written_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    sample = SAMPLES / "wide-nvlink-alltoall.sqlite"
    done = export(sample, "--out", tmp_path / "step.json")
    assert "Left out are NVTX marks, CUDA events, memory" in done.output
    tracks = read_slices((tmp_path / "step.json").read_text())
    drawn = analyze_sample(sample.name).timeline
    assert drawn is not None
    rank = drawn.ranks[0]
    kinds = {
        "stream": ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
        "NVTX": ("NVTX_EVENTS",),
        "CUDA calls": ("CUPTI_ACTIVITY_KIND_RUNTIME",),
    }
    with closing(sqlite3.connect(f"file:{sample}?mode=ro", uri=True)) as capture:
        for kind, tables in kinds.items():
            recorded = 0
            for table in tables:
                rows = f"SELECT count(*) FROM {table} WHERE end > ? AND start < ?"
                recorded += capture.execute(rows, (rank.clock_ns, rank.clock_ns + rank.length_ns)).fetchone()[0]
            written = sum(len(slices) for name, slices in tracks.items() if kind in name)
            assert (kind, written) == (kind, recorded)
            assert written > 0
