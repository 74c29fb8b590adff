"""``three_walls.tune`` with a callable in place of a command."""

from __future__ import annotations

import json
import random
import shutil
import statistics
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import three_walls
from tests.paths import REPOSITORY
from three_walls.lib.errors import UsageError
from three_walls.megatron.settings.option_words import read_user_settings
from three_walls.runs.read_runs import GivenRun, read_run
from three_walls.tuning.run_trial import ended_of
from tools import accuracy

LOG = "".join(
    f" [2026-01-01 00:00:{number:02d}] iteration {number:8d}/     500 | consumed samples: 8 | elapsed time per "
    "iteration (ms): 200.00 | learning rate: 1.0E-06 | global batch size:     8 | lm loss: 1.0E+01 | number of skipped "
    "iterations:   0 | number of nan iterations:   0 |\n"
    for number in range(1, 13)
)


def test_overrides_go_by_the_names_of_the_space(tmp_path: Path) -> None:
    def step(overrides: Any) -> list[float]:
        if overrides.get("c") == 1:
            raise MemoryError("too much")
        return [0.2 * (0.9 if overrides.get("a") == 2 else 1.0) * (1 + 0.001 * (n % 3)) for n in range(12)]

    space = {"a": [1, 2], "b": [1, 2], "c": [1, 2]}
    tuned = three_walls.tune(step, space=space, out=tmp_path, most_runs=20)
    assert dict(tuned.settings) == {"a": 2}
    assert any("too much" in each.failure for each in tuned.runs) or not any("c=1" in r.name for r in tuned.runs)
    again = three_walls.tune(lambda _: pytest.fail("it was finished"), space=space, out=tmp_path)
    assert again.kept == tuned.kept


def test_a_log_is_a_path_or_its_text_and_nothing_is_a_failure() -> None:
    line = (
        " [2026-01-01 00:00:00] iteration {0:8d}/ 500 | consumed samples: 8 | elapsed time per iteration (ms): {1} "
        "| learning rate: 1.0E-06 | global batch size: 8 | lm loss: 1.0E+01 | number of skipped iterations: 0 | "
        "number of nan iterations: 0 |\n"
    )

    def log(overrides: Any) -> Any:
        return None if overrides else "".join(line.format(n, 200 + n % 2) for n in range(1, 20))

    tuned = three_walls.tune(log, space={"a": [1]})
    assert tuned.base_ms is not None
    assert abs(tuned.base_ms - 200.5) < 1
    assert [each.failure for each in tuned.runs if each.changed] == ["it gave no log"]


@pytest.mark.parametrize(("batch_size", "is_kept"), [(8, True), (4, False)])
def test_a_shorter_step_of_fewer_samples_is_no_gain(batch_size: int, is_kept: bool) -> None:
    def log(overrides: Any) -> str:
        step_ms, samples = (110, batch_size) if overrides else (200, 8)
        return "".join(
            f" iteration {n:8d}/ 500 | consumed samples: {n} | elapsed time per iteration (ms): {step_ms + n % 2}.0 | "
            f"global batch size: {samples:5d} | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
            for n in range(1, 20)
        )

    tuned = three_walls.tune(log, space={"micro_batch_size": [1]})
    assert bool(tuned.kept) is is_kept
    (edited,) = (run for run in tuned.runs if run.changed)
    assert ("its steps are of 4 samples, the base's of 8" in edited.failure) is not is_kept


def test_steps_that_alternate_all_count_and_few_long_ones_do_not() -> None:
    # A run on an H200, with one micro-batch of 8 sequences of 8,192 tokens a step.
    alternating_ms = [529.5, 611.2, 542.4, 618.5, 534.3, 620.5, 529.4, 635.0, 527.1, 594.3, 534.1, 620.1, 530.9]
    ended = ended_of([19.6, *(step / 1000 for step in alternating_ms)], 30.0)
    assert len(ended.steps_ms) == len(alternating_ms)
    assert ended.step_s == pytest.approx(statistics.fmean(alternating_ms) / 1000, rel=0.02)
    assert 0.002 < ended.error < 0.01  # two neighbours together always take about as long
    for long_count, step_s in ((0, 0.53), (1, 0.53), (4, 0.53), (5, (0.53 + 5.3) / 2)):
        disturbed = ended_of([19.6, *(0.53,) * (10 - long_count), *(5.3,) * long_count], 30.0)
        assert disturbed.step_s == pytest.approx(step_s, rel=0.002), long_count


@pytest.mark.parametrize("long", [(1.0,), (1.0, 1.24)], ids=["steps alike", "every other step longer"])
def test_the_error_that_a_run_tells_is_by_how_much_runs_differ(long: tuple[float, ...]) -> None:
    rng = random.Random(1)
    steps_s = [[0.5 * long[n % len(long)] * rng.gauss(1, 0.01) for n in range(16)] for _ in range(200)]
    runs = [ended_of([2.0, 1.0, *steps], 30.0) for steps in steps_s]
    differ = statistics.stdev(run.step_s or 0.0 for run in runs) / (runs[0].step_s or 0.0)
    assert statistics.fmean(run.error for run in runs) == pytest.approx(differ, rel=0.25)


def test_edits_of_a_job_whose_every_other_step_is_longer_are_told_apart() -> None:
    rng = random.Random(1)

    def step(overrides: Any) -> list[float]:
        level = 0.5 * (0.95 if overrides.get("a") else 1.0) * (1.01 if overrides.get("b") else 1.0)
        return [level * (1.24 if n % 2 else 1.0) * rng.gauss(1, 0.01) for n in range(16)]

    tuned = three_walls.tune(step, space={"a": [1], "b": [1]}, most_runs=12)
    assert dict(tuned.settings) == {"a": 1}
    assert tuned.gain == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_a_large_gain_is_told_from_two_runs_and_how_far_it_may_be_off_is_a_share_of_the_step(seed: int) -> None:
    # A base whose steps vary by a tenth says little of small gains, but much of an edit that leaves a fifth of it.
    rng = random.Random(seed)

    def step(overrides: Any) -> list[float]:
        return [(0.16 if overrides else 0.8) * (1 + rng.gauss(0, 0.1)) for _ in range(14)]

    tuned = three_walls.tune(step, space={"a": [1]})
    assert len(tuned.runs) == 2
    assert tuned.gain == pytest.approx(0.8, abs=0.03)
    assert tuned.gain_deviation is not None
    assert 0.003 < tuned.gain_deviation < 0.015
    (pair,) = tuned.pairs
    assert pair.noise_ms == pytest.approx(2 * tuned.gain_deviation * pair.base_ms, abs=0.01)


@pytest.mark.exhaustive  # it analyzes a capture
def test_the_entries_of_a_captures_plan_are_called_by_name() -> None:
    def step(overrides: Any) -> list[float]:
        return [0.2 * (0.6 if overrides.get("moe_grouped_gemm") else 1.0) * (1 + 0.001 * (n % 3)) for n in range(12)]

    trace = REPOSITORY / "sample_traces" / "te-one-by-one-experts"
    tuned = three_walls.tune(step, space={"micro_batch_size": [2]}, trace=trace, most_runs=3)
    assert tuned.settings["moe_grouped_gemm"] is True
    assert "not tried: larger-micro-batch: the space has micro_batch_size" in tuned.notes


@pytest.mark.parametrize("values", [["fast"], "fast", ("fast", "fast"), {"fast"}])
def test_a_value_alone_needs_no_list(values: Any) -> None:
    tuned = three_walls.tune(lambda _: [0.2] * 12, space={"mode": values})
    assert [run.name for run in tuned.runs] == ["base", "mode=fast"]


def test_a_value_that_json_has_not_is_called_as_it_is_and_written_as_text(tmp_path: Path) -> None:
    class Kind(Enum):
        FAST = 1

    tuned = three_walls.tune(
        lambda overrides: [(0.1 if overrides.get("kind") is Kind.FAST else 0.2) * (1 + n % 2 / 100) for n in range(12)],
        space={"kind": [Kind.FAST]},
        out=tmp_path,
    )
    assert tuned.settings == {"kind": Kind.FAST}
    assert json.loads((tmp_path / "tune.json").read_text())["settings"] == {"kind": "Kind.FAST"}


def test_a_tuning_is_no_run_to_compare_but_its_runs_are(tmp_path: Path) -> None:
    three_walls.tune(lambda _: [0.2] * 12, space={"a": [1]}, out=tmp_path)
    run = tmp_path / "runs" / "000"
    run.mkdir(parents=True)
    shutil.copy(REPOSITORY / "sample_traces" / "te-host-bound" / "train.log", run)
    with pytest.raises(UsageError, match=r"compare two of the runs in .*runs"):
        read_run(GivenRun(tmp_path))
    assert read_run(GivenRun(run)).unprofiled_step_ns


def test_the_chart_shortens_names_which_the_table_has(tmp_path: Path) -> None:
    space = {f"model.a_setting_with_a_long_name_number_{number}": ["a_long_value"] for number in range(4)}
    three_walls.tune(lambda _: [0.2 + n % 2 / 1000 for n in range(12)], space=space, out=tmp_path)
    page = (tmp_path / "tune.html").read_text()
    names = [run["name"] for run in json.loads((tmp_path / "tune.json").read_text())["runs"] if len(run["changed"]) > 1]
    assert names
    assert all(name in page and f". {name}" not in page for name in names)


def test_nothing_to_try_is_refused() -> None:
    with pytest.raises(UsageError):
        three_walls.tune(lambda _: [1.0])


def test_the_page_says_why_it_ended_and_what_may_not_help(tmp_path: Path) -> None:
    def step(overrides: Any) -> list[float]:
        return [0.2 * (1 - 0.1 * len(overrides)) * (1 + 0.001 * (n % 3)) for n in range(12)]

    space = {name: [1, None] for name in "abcd"}
    tuned = three_walls.tune(step, space=space, out=tmp_path, most_runs=3)
    page = (tmp_path / "tune.html").read_text()
    assert "End: as many runs were made as allowed." in page
    assert len(tuned.kept) > 1
    doubted, unknown = tuned.notes
    assert doubted.startswith("not shown to help: ")
    assert unknown.startswith("what these give is unknown: ")
    assert {"a=null (no run had it)", "d=1 (no run had it)"} <= {*unknown.partition(": ")[2].split("; ")}
    assert doubted in page
    assert unknown in page


@pytest.mark.parametrize(("seed", "is_clear"), [(1, False), (3, True)])
def test_what_is_shorter_but_not_clearly_is_named(seed: int, is_clear: bool) -> None:
    rng = random.Random(seed)

    def step(overrides: Any) -> list[float]:
        level = 0.2 * (0.985 if overrides.get("a") else 1.0) * rng.gauss(1, 0.01)
        return [level * (1 + 0.001 * (n % 3)) for n in range(12)]

    tuned = three_walls.tune(step, space={"a": [1], "b": [1]}, most_runs=6)
    assert bool(tuned.kept) is is_clear
    named = [note for note in tuned.notes if note.startswith("shorter than what is kept by ")]
    assert [note.endswith("and not kept because that is not clear: a=1") for note in named] == [True] * (not is_clear)


@pytest.mark.parametrize("iterations", [1, 2])
def test_the_page_has_the_peaks_that_runs_print(tmp_path: Path, iterations: int) -> None:
    line = (
        "[Rank 0] (after {} iterations) memory (MB) | allocated: 4096.00 | max allocated: 8192.00 | reserved: 9000.00 "
        "| max reserved: 9000.00\n"
    )
    tuned = three_walls.tune(lambda _: LOG + line.format(iterations), space={"a": [1]}, out=tmp_path, most_runs=2)
    is_known = iterations > 1  # before, the optimizer may have kept nothing yet
    assert [run.peak_bytes for run in tuned.runs] == [8 << 30 if is_known else None] * 2
    assert ("8.0 GiB" in (tmp_path / "tune.html").read_text()) is is_known


@pytest.mark.parametrize(("loss", "is_told"), [(7.5, True), (9.95, False), (None, False)])
def test_a_loss_that_the_kept_edit_changes_is_told(tmp_path: Path, loss: float | None, is_told: bool) -> None:
    def run(overrides: Any) -> str:
        if loss is None:
            return LOG.replace("lm loss: 1.0E+01 | ", "").replace("200.00", "100.00" if overrides else "200.00")
        return LOG.replace("200.00", "100.00").replace("1.0E+01", f"{loss:.6E}") if overrides else LOG

    tuned = three_walls.tune(run, space={"a": [1]}, out=tmp_path, most_runs=3)
    assert [run.loss for run in tuned.runs][:2] == ([10.0, loss] if loss else [None, None])
    assert [note for note in tuned.notes if "has a loss of 7.5 over" in note] == list(tuned.notes)[: int(is_told)]
    assert (">Loss<" in (tmp_path / "tune.html").read_text()) is bool(loss)


def test_pairs_are_read_as_measured_pairs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(overrides: Any) -> list[float]:
        return [0.2 * (1 - 0.1 * len(overrides)) * (1 + 0.001 * (n % 3)) for n in range(12)]

    space = {"recompute_granularity": [None], "moe_permute_fusion": [True], "env.NCCL_P2P_DISABLE": [0]}
    words = {word for pair in three_walls.tune(step, space=space).pairs for word in pair.set}
    assert words == {"recompute_granularity=null", "moe_permute_fusion=true", "env_vars.NCCL_P2P_DISABLE=0"}
    rows = [asdict(pair) for pair in three_walls.tune(step, space=space).pairs]
    written = tmp_path / "measured_pairs.yaml"
    written.write_text(json.dumps({"groups": [], "edits": rows}))
    monkeypatch.setattr(accuracy, "PAIRS", written)
    assert {word for edit in accuracy.read_edits() for word in edit.settings} == words
    read = read_user_settings(sorted(words))
    assert {name: each.value for name, each in read.values.items()} == {
        "recompute_granularity": None, "moe_permute_fusion": True,
    }  # fmt: skip
    assert read.environment["NCCL_P2P_DISABLE"].value == "0"
