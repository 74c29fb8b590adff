"""From runs of benchmarks/gpu to entries of measured_pairs.yaml."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.paths import MEASURED_BASES
from three_walls.pipeline import analyze
from three_walls.report.json_report import render_json
from three_walls.tables.prediction_intervals import Levels, MeasuredGain, StepLimits
from tools import collect_pairs
from tools.accuracy import Comparison, MeasuredEdit
from tools.collect_pairs import (
    MOST_BASE_BYTES,
    Edit,
    ask,
    cli,
    find_difference,
    list_runs,
    measure_bytes,
    pair_runs,
    read_case,
    reduce_base,
    shorten_log,
)

MID_SIZE = str(collect_pairs.KIT / "cases" / "mid-size.yaml")


def run(
    number: int, edit: str | None, ms: float | None, quartiles: tuple[float, float] | None = None
) -> dict[str, Any]:
    """A line of runs.jsonl."""
    return {
        "case": "mid-size", "edit": edit, "rule": None, "number": number, "median_ms": ms,
        "quartiles_ms": quartiles or (ms and (ms - 1, ms + 1)), "steps_ms": [3000.0, ms or 0], "wall_s": 17.1,
        "error": None if ms else "RuntimeError: CUDA out of memory", "gpus": [], "cpus": [],
    }  # fmt: skip


def test_an_edit_is_compared_with_the_bases_beside_it_over_all_of_its_runs(tmp_path: Path) -> None:
    lines = [
        run(0, None, 100.0), run(1, "a", 80.0), run(2, "b", 90.0, (85.0, 105.0)), run(3, None, 110.0),
        run(4, "a", 99.0), run(5, None, 110.0), run(6, "failed", None),
    ]  # fmt: skip
    a, b = pair_runs(lines, tmp_path)
    assert (a.name, a.base_ms, a.edited_ms) == ("a", 107.5, 89.5)  # (105 + 110) / 2 and (80 + 99) / 2
    assert a.noise_ms == round((0.238 - 0.1) / 2 * 107.5)  # half of what gains of 24% and of 10% differ by
    assert (b.base_ms, b.edited_ms, b.noise_ms) == (105.0, 90.0, 10)  # half of its own quartiles' distance


def test_the_noise_of_an_edit_that_ran_often_is_twice_the_standard_error_of_its_gain(tmp_path: Path) -> None:
    lines = [run(0, None, 100.0)]
    for number, ms in enumerate((97.0, 98.0, 99.0, 98.0)):
        lines += [run(2 * number + 1, "a", ms), run(2 * number + 2, None, 100.0)]
    [pair] = pair_runs(lines, tmp_path)
    assert (pair.base_ms, pair.edited_ms, pair.runs) == (100.0, 98.0, 4)
    assert pair.noise_ms == 1  # 2 x 0.82 / 2 = 0.8, and no less than 1


def test_an_edit_after_the_last_base_has_one_neighbour_and_one_without_any_is_left_out(tmp_path: Path) -> None:
    assert [pair.base_ms for pair in pair_runs([run(0, None, 100.0), run(1, "a", 80.0)], tmp_path)] == [100.0]
    assert pair_runs([run(0, "a", 80.0)], tmp_path) == []


def report_of(*ranks: dict[int, int], step: int = 1) -> Any:
    """A report about ``step`` of rank 0. ``ranks``: for each of them the lengths of its whole steps."""
    rows = [
        SimpleNamespace(
            rank=rank,
            steps=[SimpleNamespace(index=step, start_ns=10, end_ns=10 + ns, kept=True) for step, ns in lengths.items()]
            + [SimpleNamespace(index=9, start_ns=0, end_ns=5, kept=False)],
        )
        for rank, lengths in enumerate(ranks)
    ]
    return SimpleNamespace(timeline=SimpleNamespace(rank=0, step=step), ranks=rows)


def test_steps_are_kept_around_the_one_that_a_report_is_about() -> None:
    assert list_runs(report_of({1: 70, 2: 90, 3: 50, 4: 80}, step=1)) == [(1, 4), (1, 3), (1, 2), (1, 1)]
    # Of two in the middle the shorter is the median. Steps 2 and 3 have another one.
    assert list_runs(report_of({1: 90, 2: 70, 3: 50, 4: 80}, step=2)) == [(1, 4), (1, 3), (2, 4), (1, 2), (2, 2)]


def test_of_as_many_steps_those_come_first_that_are_usual_on_the_other_ranks() -> None:
    assert list_runs(report_of({1: 90, 2: 70, 3: 80}, {1: 50, 2: 60, 3: 50}, step=2))[-1] == (2, 2)
    assert list_runs(report_of({1: 90, 2: 70, 3: 80}, {1: 50, 2: 60, 3: 70}, step=2))[:2] == [(2, 3), (1, 2)]


def test_a_base_takes_at_most_one_and_a_half_megabytes() -> None:
    sizes = {base.name: measure_bytes(base) for base in MEASURED_BASES.iterdir() if base.is_dir()}
    assert len(sizes) == len(list(MEASURED_BASES.glob("*.labels.yaml")))
    assert {base: size for base, size in sizes.items() if not 0 < size <= MOST_BASE_BYTES} == {}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_base_is_cut_to_the_steps_that_fit_with_the_same_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(shutil.copytree(MEASURED_BASES / "muon", tmp_path / "muon"))
    before = measure_bytes(base)
    monkeypatch.setattr(collect_pairs, "MOST_BASE_BYTES", before // 2)
    assert re.match(r"muon: steps (\d)-\1, [\d,]+ bytes", reduce_base(base))
    assert measure_bytes(base) < before / 2
    assert sorted(path.name for path in base.iterdir()) == sorted(
        path.name for path in (MEASURED_BASES / "muon").iterdir()
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_base_stays_where_some_of_its_steps_tell_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(shutil.copytree(MEASURED_BASES / "muon", tmp_path / "muon"))
    before = measure_bytes(base)
    monkeypatch.setattr(collect_pairs, "find_difference", lambda *_: "the wall is another")
    assert reduce_base(base) == "muon: as it was: with steps 1-2 alone the wall is another"
    assert measure_bytes(base) == before


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_base_whose_steps_do_not_fit_gets_packed_tables_with_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(shutil.copytree(MEASURED_BASES / "muon", tmp_path / "muon"))
    before, whole = measure_bytes(base), render_base(base)
    monkeypatch.setattr(collect_pairs, "MOST_BASE_BYTES", 1)
    monkeypatch.setattr(collect_pairs, "_cut_to_steps", lambda path: f"{path.name}: one step")
    assert reduce_base(base) == f"muon: one step; with packed tables {measure_bytes(base):,} bytes"
    assert measure_bytes(base) < 2 / 3 * before
    assert not list(base.glob("*.sqlite*"))
    assert render_base(base) == whole
    assert reduce_base(base) == "muon: as it was, its tables are packed"


def render_base(base: Path) -> dict[str, Any]:
    """report.json of ``base`` but for the names and digests of its files."""
    text = render_json(analyze(base)).replace("rank0_arwdir", "rank0.sqlite.xz")
    report: dict[str, Any] = json.loads(text)
    del report["inputs"]
    return report


def told(culprit: int | None, cause: str, step_ms: int) -> Any:
    """A report of a run whose rank 1 is late by ``cause``, and whose rank ``culprit`` holds the others up."""
    verdict = SimpleNamespace(wall="compute_host", sub_wall="host", culprit=culprit and SimpleNamespace(rank=culprit))
    facts = SimpleNamespace(number=lambda _: step_ms * 1_000_000)
    return SimpleNamespace(verdict=verdict, stragglers=[SimpleNamespace(rank=1, cause=cause)], facts=facts)


@pytest.mark.parametrize(
    ("shorter", "difference"),
    [
        (told(1, "unknown", 1004), ""),
        (told(1, "unknown", 1006), "the unprofiled step takes 1006.0 ms, not 1000.0"),
        (
            told(None, "slow_compute", 1000),
            "rank 1 is late: slow_compute, not: rank 1 holds the run up; rank 1 is late: unknown",
        ),
    ],
)
def test_steps_tell_otherwise_where_the_step_takes_half_a_percent_more_or_another_rank_is_late(
    shorter: Any, difference: str
) -> None:
    assert find_difference(told(1, "unknown", 1000), shorter) == difference


def test_a_log_keeps_the_lines_of_iterations_and_of_memory_in_turn() -> None:
    steps = [f" [d] iteration {step}/ 15 | elapsed time per iteration (ms): 9.0 |" for step in (1, 2)]
    last = "\n".join(["noise", *steps])
    first = "[Rank 0] (after 1 iterations) memory (GB) | 3\n[Rank 1] (after 2 iterations) memory (GB) | 4\n"
    kept = shorten_log(last, first).splitlines()
    assert [line.split("|")[0].strip() for line in kept] == [
        "[d] iteration 1/ 15",
        "[Rank 0] (after 1 iterations) memory (GB)",
        "[d] iteration 2/ 15",
    ]


def test_an_edit_is_asked_for_by_its_settings_and_variables() -> None:
    both = Edit("both", overrides=("+model.a=[x,y]", "train.b=null"), environment={"A": "1"})
    assert ask(both) == {"set": ["a=[x,y]", "b=null", "env_vars.A=1"]}


def test_an_edit_that_takes_a_fault_away_heals_the_slow_rank_and_no_setting_stands_for_another_fault() -> None:
    assert ask(Edit("healthy", rule="late-rank", faults={})) == {"heals": True}
    assert ask(Edit("a fault", overrides=("model.a=1",), faults={"local_exchange": True})) == {}


def answer(edit: MeasuredEdit, _: object) -> Comparison | str:
    if "moe_permute_fusion=true" in edit.settings:
        return "no trace says so"
    gain = Levels(0.1, 0.2, 0.3)
    return Comparison(edit, MeasuredGain(gain, 0.0, StepLimits(0.0, 0.0), StepLimits(0.0, 0.0)), noise=0, printed=gain)


@pytest.fixture
def predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(collect_pairs, "compare", answer)
    monkeypatch.setattr(collect_pairs, "load_base", lambda path: path)
    path = tmp_path / "predictions.yaml"
    done = CliRunner().invoke(cli, ["predict", MID_SIZE, "--bases", str(tmp_path), "--out", str(path)])
    assert done.exit_code == 0, done.output
    return path


def test_a_prediction_says_how_it_was_asked_for_and_is_made_once(predictions: Path, tmp_path: Path) -> None:
    found = yaml.safe_load(predictions.read_text())["cases"]["mid-size"]
    assert set(found) == {edit.name for edit in read_case(Path(MID_SIZE)).edits}
    assert found["micro-batch-4"] == {"set": ["micro_batch_size=4"], "gain_percent": [10.0, 20.0, 30.0]}
    assert found["permute-fusion"] == {"not_predicted": "no trace says so"}
    again = CliRunner().invoke(cli, ["predict", MID_SIZE, "--bases", str(tmp_path), "--out", str(predictions)])
    assert again.exit_code == 2


def test_a_pair_is_set_aside_only_where_it_was_predicted_before_it_ran(predictions: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "mid-size"
    folder.mkdir(parents=True)
    lines = [
        run(0, None, 100.0), run(1, "micro-batch-4", 80.0), run(2, "rope-fusion", 90.0), run(3, "permute-fusion", 95.0),
        run(4, None, 100.0), run(99, None, 300.0),
    ]  # fmt: skip
    (folder / "runs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name, year in (("01-micro-batch-4", 2999), ("02-rope-fusion", 2001)):
        (folder / f"{name}.rank1.log").write_text(f"warning: [{year}-01-01 00:00:00.123456] iteration 1/ 13 |\n")
    command = ["pairs", str(tmp_path / "out"), "--predictions", str(predictions), "--machine", "8 x H200"]
    printed = CliRunner().invoke(cli, command).output
    entries, table = printed.split("\n| pair", 1)
    (group,), edits = (yaml.safe_load(entries)[key] for key in ("groups", "edits"))
    assert group["base_runs_ms"] == [100, 100]  # without the captured run
    assert [row["step_ms"] for row in group["runs"]] == [100, 80, 90, 95]
    assert [(edit["name"], edit.get("set_aside", False)) for edit in edits] == [
        ("micro batch 4, mid size", True),
        ("rope fusion, mid size", False),
    ]
    assert "| `mid-size` | base (2 runs: 100, 100) | 100 |" in table
    assert "| | permute fusion | 95 |" in table
