"""``three-walls whatif``: what it asks of the run, what it prints, and how it refuses bad input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY
from tests.tables.test_prediction_intervals import INTERVALS
from three_walls import pipeline
from three_walls.advice.answer_what_if import ReplayedRun
from three_walls.advice.finding import PlanNote
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.cli import main
from three_walls.cli.whatif import read_question
from three_walls.facts.fact_rows import Prediction
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.fact import Fact, FactSheet
from three_walls.replay.transformation import NoPredictor, Transformation

MS = 1_000_000
_LOSS = "config.cross_entropy_loss_fusion"
RULE_BASE = load_rule_base(DEFINITIONS)


class Predictor:
    """Each transformation halves the step."""

    missing_reason = ""

    def __init__(self) -> None:
        self.asked: tuple[Transformation, ...] = ()

    @property
    def step_ns(self) -> Prediction:
        return Prediction(98 * MS, 100 * MS, 102 * MS)

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        self.asked = tuple(transformations)
        likely = 100 * MS // 2 ** len(transformations)
        return Prediction(likely - 2 * MS, likely, likely + 2 * MS)

    def explain(self, transformation: Transformation) -> str:
        return "" if transformation.select.kernels != "nothing" else "No operation is named like nothing."

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        likely = 100 * MS // 2 ** len(transformations)
        return {"gemm": likely // 2, "launch_starved": likely - likely // 2}

    def paused_after(self, transformations: Sequence[Transformation]) -> int:
        return 0 * len(transformations)

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        total = 100 * MS // 2 ** len(transformations)
        return {"host": total * 3 // 5, "compute": total * 2 // 5}


@pytest.fixture
def predictor(monkeypatch: pytest.MonkeyPatch) -> Predictor:
    """The run of every trace is replayed by this one."""
    fake = Predictor()
    run = ReplayedRun(RULE_BASE.rules, RULE_BASE.effects, FactSheet.of(()), fake)
    monkeypatch.setattr(pipeline, "replay_run", lambda *_, **__: run)
    return fake


def whatif(*arguments: str, trace: str = "trace.sqlite") -> Result:
    # Through the group: a command that ran without it keeps, for the whole process, a help option without -h.
    return CliRunner().invoke(main.cli, ["whatif", trace, *arguments], catch_exceptions=False)


def test_it_prints_the_step_now_and_then_the_limit_and_the_budget(predictor: Predictor) -> None:
    lines = whatif("--scale", "host=0.5").output.splitlines()
    assert lines[0].startswith("Step now   100 ms (range 98-102 ms) (the captured step without the estimated cost")
    assert lines[1] == "Step then  50.0 ms (range 48-52 ms), 50.0 ms shorter (50.0%)"
    assert lines[2] == ("Limit      the host 60.0% of the critical path; then compute kernels 40.0%")
    assert [line.split() for line in lines[4:]] == [
        ["Budget", "then", "now", "then", "share"],
        ["GEMM", "50.0", "ms", "25.0", "ms", "50.0%"],
        ["launch-starved", "50.0", "ms", "25.0", "ms", "50.0%"],
    ]
    assert len(predictor.asked) == 1


def test_json_has_exactly_six_keys(predictor: Predictor) -> None:
    document = json.loads(whatif("--scale", "nccl=0.5", "--drop", "softmax", "--json").output)
    assert document == {
        "step_ns": 100 * MS,
        "after_ns": {"low": 23 * MS, "likely": 25 * MS, "high": 27 * MS},
        "because_unknown": None,
        "budget_after": {"gemm": 12_500_000, "launch_starved": 12_500_000},
        "refused": [],
        "notes": [],
    }
    assert len(predictor.asked) == 2


def test_a_precision_recipe_is_asked_by_its_name_alone() -> None:
    question = read_question(("mixed_precision=bf16_with_fp8_current_scaling_mixed",), (), (), None)
    assert question.settings == {"config.mixed_precision": "bf16_with_fp8_current_scaling_mixed"}
    question = read_question(("fp8=hybrid", "fp8_recipe=tensorwise"), (), (), None)
    assert question.settings == {"config.fp8": "hybrid", "config.fp8_recipe": "tensorwise"}


def test_several_options_combine_in_one_prediction(predictor: Predictor) -> None:
    whatif("--scale", "host=0.5", "--scale", "gemm=0.8", "--drop", "softmax", "--drop", "rope")
    assert [change.select.kernels for change in predictor.asked] == ["", "", "softmax", "rope"]


@pytest.mark.parametrize("late", [True, False])
def test_a_step_whose_rank_is_late_is_told_from_that_of_a_plan_that_starts_without_its_delay(late: bool) -> None:
    facts = FactSheet({"culprit_rank": Fact("culprit_rank", 1, "ranks")} if late else {})
    run = ReplayedRun(RULE_BASE.rules, RULE_BASE.effects, facts, Predictor(), intervals=INTERVALS)
    notes = run.with_edits(scales={"nccl": 0.5}).notes
    assert any(note.startswith("Rank 1 is late in this step, and stays so") for note in notes) is late


def test_what_changes_nothing_is_said(predictor: Predictor) -> None:
    assert "Note: No operation is named like nothing." in whatif("--drop", "nothing").output
    assert predictor.asked


def test_a_value_that_is_given_twice_is_one_value() -> None:
    question = read_question(
        ("micro_batch_size=2", "train.micro_batch_size=2", "env_vars.NCCL_P2P_DISABLE=1"), (), (), None
    )
    assert question.settings == {"config.micro_batch_size": 2, "env.NCCL_P2P_DISABLE": "1"}


@pytest.mark.usefixtures("predictor")
def test_a_setting_whose_effect_is_not_known_is_answered_with_the_reason() -> None:
    found = json.loads(whatif("--set", "seq_length=7", "--json").output)
    assert found["because_unknown"] == "what seq_length=7 changes is not known, because no measurement shows it"


def test_what_the_launcher_refuses_is_said_with_the_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    note = PlanNote("overlap_without_recompute", "overlap_moe_expert_parallel_comm needs recompute to be off.")
    run = ReplayedRun((), RULE_BASE.effects, FactSheet.of(()), Predictor(), validate=lambda edits: (note,) * len(edits))
    monkeypatch.setattr(pipeline, "replay_run", lambda *_, **__: run)
    asked = ("--set", "recompute_granularity=full")
    assert f"Refused: {note.text}" in whatif(*asked).output
    assert json.loads(whatif(*asked, "--json").output)["refused"] == [{"constraint": note.name, "reason": note.text}]
    assert "Refused" not in whatif("--scale", "host=0.5").output


def test_a_withheld_prediction_is_one_line_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ReplayedRun((), (), FactSheet.of(()), NoPredictor("the capture has no CUDA API calls"))
    monkeypatch.setattr(pipeline, "replay_run", lambda *_, **__: run)
    plain, as_json = whatif("--scale", "host=0.5"), whatif("--scale", "host=0.5", "--json")
    assert plain.exit_code == as_json.exit_code == 0
    assert plain.output.splitlines() == [
        "Step now   unknown",
        "Step then  unknown: the capture has no CUDA API calls",
    ]
    assert json.loads(as_json.output) == {
        "step_ns": None,
        "after_ns": {"low": None, "likely": None, "high": None},
        "because_unknown": "the capture has no CUDA API calls",
        "budget_after": {},
        "refused": [],
        "notes": [],
    }


def test_the_log_is_named_as_the_source_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = FactSheet.of([Fact("unprofiled_step_ns", 100 * MS, "ns")])
    monkeypatch.setattr(pipeline, "replay_run", lambda *_, **__: ReplayedRun((), (), facts, Predictor()))
    assert "(median of the log's unprofiled steps)" in whatif("--scale", "host=1").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a change, found none"),
        (["--scale", "host"], "expected WHAT=FACTOR"),
        (["--scale", "host=fast"], "expected WHAT=FACTOR"),
        (["--scale", "host=-1"], "factor from 0 to 1000"),
        (["--scale", "host=nan"], "factor from 0 to 1000"),
        (["--scale", "host=inf"], "factor from 0 to 1000"),
        (["--scale", "hots=0.5"], "did you mean host"),
        (["--drop", "("], "--drop: expected a regular expression"),
        (["--drop", "(?=x)"], "--drop: expected a regular expression"),
        (["--drop", ""], "--drop: expected a regular expression"),
        (["--network-gbs", "0"], "expected a bandwidth above 0 GB/s"),
        (["--network-gbs", "nan"], "expected a bandwidth above 0 GB/s"),
        (["--set", "overlap_moe_expert_parallel_com=true"], "did you mean"),
        (["--set", "overlap_moe_expert_parallel_comm"], "expected key=value"),
        (["--set", "micro_batch_size=2", "--set", "micro_batch_size=4"], "expected one value, found 2 and 4"),
        (
            ["--set", "env_vars.NCCL_ALGO=Ring", "--set", "env_vars.NCCL_ALGO=Tree"],
            "expected one value, found 'Ring' and",
        ),
    ],
)
@pytest.mark.usefixtures("predictor")
def test_bad_input_is_one_line_with_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["three-walls", "whatif", "trace.sqlite", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_a_trace_that_is_missing_is_one_line_with_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["three-walls", "whatif", "none.sqlite", "--scale", "host=0.5"])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_small_trace_is_answered_from_the_file(tmp_path: Path) -> None:
    trace = TraceBuilder().steps(4).write(tmp_path / "rank0.sqlite")
    done = whatif("--scale", "host=0.5", "--json", trace=str(trace))
    assert done.exit_code == 0
    assert set(json.loads(done.output)) == {
        "step_ns", "after_ns", "because_unknown", "budget_after", "refused", "notes"
    }  # fmt: skip


def test_a_bad_step_range_is_one_line_with_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["three-walls", "whatif", "none.sqlite", "--scale", "host=0.5", "--step-range", "("]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_real_trace_is_answered_with_a_budget_that_sums_to_the_step() -> None:
    trace = REPOSITORY / "sample_traces" / "healthy-two-gpus.sqlite.xz"
    done = whatif("--scale", "host=0.5", "--json", trace=str(trace))
    found = json.loads(done.output)
    assert found["because_unknown"] is None
    assert found["after_ns"]["low"] <= found["after_ns"]["likely"] <= found["after_ns"]["high"]
    assert found["after_ns"]["likely"] < found["step_ns"]
    assert sum(found["budget_after"].values()) == found["after_ns"]["likely"]
