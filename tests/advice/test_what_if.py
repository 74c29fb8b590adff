"""What asked changes mean for the step: settings, factors, dropped kernels, another network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.advice.builders import MS, case, effect, sheet_of
from three_walls.advice.answer_what_if import SCALABLE, ReplayedRun, answer, find_changes
from three_walls.advice.finding import PlannedEdit, PlanNote
from three_walls.advice.format.effect import Effect
from three_walls.advice.what_if import Question
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.errors import UsageError
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, NoPredictor, Predictor, Selection, Transformation
from three_walls.tables.prediction_intervals import Levels

FUSE_ROPE = Transformation(Action.FUSE, Selection(work=("rope",)))
HIDE = Transformation(Action.HIDE, Selection(categories=("communication",)))
ROPE = effect(
    "apply_rope_fusion",
    case("config.apply_rope_fusion is True", FUSE_ROPE),
    otherwise="the capture does not show the kernels that the fusion replaced",
)
OVERLAP = effect(
    "overlap_moe_expert_parallel_comm",
    case("config.overlap_moe_expert_parallel_comm is True", HIDE),
    phase="overlap",
    together_with=("env.CUDA_DEVICE_MAX_CONNECTIONS",),
)


def facts_of(**values: ConfigData) -> FactSheet:
    return sheet_of({name.replace("__", "."): value for name, value in values.items()})


@dataclass
class FakePredictor:
    """Every transformation saves 10 ms of a step of 100 ms."""

    missing_reason: str = ""
    error_fraction: float = 0.0
    absent_fraction: float = 0.0
    asked: list[tuple[Transformation, ...]] = field(default_factory=list)

    @property
    def step_ns(self) -> Prediction:
        return Prediction(95 * MS, 100 * MS, 105 * MS)

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        self.asked.append(tuple(transformations))
        likely = 100 * MS - 10 * MS * len(transformations)
        return Prediction(likely - MS, likely, likely + MS)

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:
        return self.predict(transformations).likely_ns

    def explain(self, transformation: Transformation) -> str:
        return "no kernel is named so" if transformation.select.kernels == "nothing" else ""

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        return {"gemm": 60 * MS, "launch_starved": 40 * MS - 10 * MS * len(transformations)}

    def paused_after(self, transformations: Sequence[Transformation]) -> int:
        return 0 * len(transformations)

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        return {"compute": 100 * MS - 10 * MS * len(transformations)}


def run(predictor: Predictor, *effects: Effect, **values: ConfigData) -> ReplayedRun:
    return ReplayedRun((), effects, facts_of(**values), predictor)


def test_settings_and_factors_change_the_step_together() -> None:
    question = Question(
        {"config.overlap_moe_expert_parallel_comm": True, "config.apply_rope_fusion": True},
        scales=(("host", 0.5), ("norm", 2.0)),
        dropped_kernels=("softmax",),
    )
    found = find_changes(question, run(FakePredictor(), ROPE, OVERLAP))
    assert found.transformations[:2] == (FUSE_ROPE, HIDE)
    assert [change.action for change in found.transformations[2:]] == [Action.HOST, Action.SCALE, Action.SCALE]
    assert not found.unknown
    assert not found.notes


def test_a_companion_pulls_nothing_in() -> None:
    overlap: dict[str, ConfigData] = {"config.overlap_moe_expert_parallel_comm": True}
    with_queues = {**overlap, "env.CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    made = run(FakePredictor(), ROPE, OVERLAP)
    assert find_changes(Question(with_queues), made) == find_changes(Question(overlap), made)


def test_a_setting_that_the_run_has_changes_nothing_and_a_note_says_so() -> None:
    made = run(FakePredictor(), ROPE, OVERLAP, config__apply_rope_fusion=True)
    found = find_changes(Question({"config.apply_rope_fusion": True}), made)
    assert (found.transformations, found.unknown) == ((), ())
    assert found.notes == ("apply_rope_fusion=true is set already: it changes nothing.",)
    both = find_changes(
        Question({"config.apply_rope_fusion": True, "config.overlap_moe_expert_parallel_comm": True}), made
    )
    assert (both.transformations, both.notes) == ((HIDE,), found.notes)


def test_a_name_that_does_not_exist_is_refused_in_one_line_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"apply_rope_fusio is no setting .*did you mean apply_rope_fusion") as refused:
        find_changes(Question({"config.apply_rope_fusio": True}), run(FakePredictor(), ROPE))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        (
            "config.apply_rope_fusion",
            False,
            "what apply_rope_fusion=false changes is not known, because "
            "the capture does not show the kernels that the fusion replaced",
        ),
        (
            "config.seq_length",
            1024,
            "what seq_length=1024 changes is not known, because no measurement shows it",
        ),
        (
            "env.ANY_VARIABLE",
            "1",
            "what ANY_VARIABLE=1 changes is not known, because no measurement shows it",
        ),
    ],
)
def test_a_change_that_nobody_measured_leaves_the_answer_unknown(setting: str, value: ConfigData, reason: str) -> None:
    made = run(FakePredictor(), ROPE, config__apply_rope_fusion=True)
    found = answer(Question({setting: value}, scales=(("host", 0.5),)), made)
    assert (found.after, found.because_unknown) == (None, reason)
    assert found.step is not None


def test_what_the_launcher_refuses_is_told_beside_the_prediction() -> None:
    asked: list[PlannedEdit] = []

    def refuse(edits: Sequence[PlannedEdit]) -> tuple[PlanNote, ...]:
        asked.extend(edits)
        return (PlanNote("ep_overlap_excludes_full_recompute", "disable full recomputation"),)

    made = replace(run(FakePredictor(), ROPE, OVERLAP, config__apply_rope_fusion=True), validate=refuse)
    settings: dict[str, ConfigData] = {
        "config.apply_rope_fusion": True,
        "config.overlap_moe_expert_parallel_comm": True,
    }
    found = answer(Question(settings), made)
    assert found.after is not None
    assert [note.name for note in found.refused] == ["ep_overlap_excludes_full_recompute"]
    assert [(edit.key, edit.from_value, edit.to) for edit in asked] == [
        ("overlap_moe_expert_parallel_comm", None, True)
    ]  # what the run has is nothing to check


def test_what_the_launcher_refuses_is_told_where_nothing_is_predicted() -> None:
    note = PlanNote("conflict", "refused")
    unknown = replace(run(FakePredictor()), validate=lambda _: (note,))
    withheld = replace(run(NoPredictor("no launches")), validate=lambda _: (note,))
    question = Question({"config.apply_rope_fusion": True})
    for made in (unknown, withheld):
        found = answer(question, made)
        assert found.after is None
        assert found.refused == (note,)
    assert answer(Question(scales=(("host", 0.5),)), unknown).refused == ()  # no settings, nothing to check


def test_settings_are_asked_for_by_their_names() -> None:
    predictor = FakePredictor()
    made = run(predictor, ROPE, OVERLAP, env__CUDA_DEVICE_MAX_CONNECTIONS="1")
    found = made.with_edits(
        {
            "apply_rope_fusion": True,
            "overlap_moe_expert_parallel_comm": True,
            "env.CUDA_DEVICE_MAX_CONNECTIONS": "32",
        },
        scales={"host": 0.5},
        dropped_kernels=["softmax"],
    )
    assert found.after == Prediction(59 * MS, 60 * MS, 61 * MS)


def test_modules_may_be_asked_for_as_a_list() -> None:
    made = run(FakePredictor(), ROPE, config__recompute_modules=("core_attn",))
    [note] = made.with_edits({"recompute_modules": ["core_attn"]}).notes
    assert note == "recompute_modules=[core_attn] is set already: it changes nothing."


def test_host_is_scaled_whole_and_other_names_select_operations() -> None:
    changes = find_changes(Question(scales=(("host", 0.5), ("gemms", 0.8), ("norm", 2.0))), run(FakePredictor()))
    host, gemms, norm = changes.transformations
    assert (host.action, host.host.likely, host.select) == (Action.HOST, 0.5, Selection())
    assert gemms.select.categories == ("gemm", "grouped_gemm")
    assert gemms.time == Levels(0.8, 0.8, 0.8)
    assert norm.select.categories == ("norm",)


def test_nccl_is_communication_by_nccl_kernels_alone() -> None:
    (nccl,) = find_changes(Question(scales=(("nccl", 0.5),)), run(FakePredictor())).transformations
    assert "ep_all_to_all" in nccl.select.categories
    assert nccl.select.kernels


def test_every_scale_alone_and_all_together_are_changes_of_the_step() -> None:
    for name in SCALABLE:
        assert len(find_changes(Question(scales=((name, 0.0),)), run(FakePredictor())).transformations) == 1
    everything = Question(scales=(("host", 0.0), ("compute", 0.0), ("communication", 0.0)))
    host, compute, communication = find_changes(everything, run(FakePredictor())).transformations
    assert host.host == compute.time == communication.time == Levels(0.0, 0.0, 0.0)


def test_a_misspelt_scale_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"--scale gem: .*did you mean gem"):
        find_changes(Question(scales=(("gem", 0.5),)), run(FakePredictor()))


def test_dropped_kernels_go_with_their_launches() -> None:
    (dropped,) = find_changes(Question(dropped_kernels=("softmax",)), run(FakePredictor())).transformations
    assert (dropped.select.kernels, dropped.time.likely, dropped.host.likely) == ("softmax", 0.0, 0.0)


def test_another_network_scales_transfers_by_measured_over_asked_bandwidth() -> None:
    facts: dict[str, ConfigData] = {
        "ep_achieved_bytes_per_s": 20e9,
        "ep_fastest_bytes_per_s": 30e9,
        "ep_within_nvlink_domain": False,
        "dp_spans_nodes": False,
    }
    (exchange,) = find_changes(Question(network_bytes_per_s=100e9), run(FakePredictor(), **facts)).transformations
    assert exchange.select.categories == ("ep_all_to_all", "ep_dispatch_combine")
    assert exchange.time == Levels(0.3, 0.25, 0.2)  # low: the smallest gain


def test_exchanges_over_nvlink_do_not_change_with_the_network() -> None:
    facts: dict[str, ConfigData] = {
        "ep_achieved_bytes_per_s": 200e9,
        "ep_fastest_bytes_per_s": 300e9,
        "ep_within_nvlink_domain": True,
        "dp_spans_nodes": False,
        "nvlink_achieved_fraction": 0.7,
    }
    found = find_changes(Question(network_bytes_per_s=100e9), run(FakePredictor(), **facts))
    assert not found.transformations
    assert "no communication of this run is known to use the network" in found.unknown[0]


def test_exchanges_that_should_run_over_nvlink_and_do_not_change_with_the_network() -> None:
    facts: dict[str, ConfigData] = {
        "ep_achieved_bytes_per_s": 4e9,
        "ep_fastest_bytes_per_s": 4e9,
        "ep_within_nvlink_domain": True,
        "dp_spans_nodes": False,
        "nvlink_achieved_fraction": 0.01,
    }
    assert (
        find_changes(Question(network_bytes_per_s=40e9), run(FakePredictor(), **facts)).transformations[0].time.likely
        == 0.1
    )


def test_the_answer_holds_the_step_the_budget_and_the_limit_after_all_changes() -> None:
    predictor = FakePredictor()
    found = answer(Question({"config.apply_rope_fusion": True}, scales=(("host", 0.5),)), run(predictor, ROPE))
    assert found.step is not None
    assert found.after == Prediction(79 * MS, 80 * MS, 81 * MS)
    assert [change.action for change in predictor.asked[0]] == [Action.FUSE, Action.HOST]
    assert found.budget_after == {"gemm": 60 * MS, "launch_starved": 20 * MS}
    assert found.budget == {"gemm": 60 * MS, "launch_starved": 40 * MS}
    assert found.limits_after == {"compute": 80 * MS}
    assert found.because_unknown == ""


def test_what_changes_nothing_is_noted() -> None:
    found = answer(Question(dropped_kernels=("nothing",)), run(FakePredictor()))
    assert found.notes == ("no kernel is named so",)


def test_a_withheld_prediction_gives_the_reason_and_the_step_that_the_log_knows() -> None:
    withheld = NoPredictor("the capture has no API rows")
    question = Question(scales=(("host", 0.5),))
    assert answer(question, run(withheld)).because_unknown == "the capture has no API rows"
    assert answer(question, run(withheld)).step is None
    logged = answer(question, run(withheld, unprofiled_step_ns=90 * MS))
    assert logged.step == Prediction(90 * MS, 90 * MS, 90 * MS)
    assert logged.after is None


def test_the_budget_sums_to_the_likely_step_where_a_log_decides_its_length() -> None:
    class Logged(FakePredictor):
        @property
        def step_ns(self) -> Prediction:
            return Prediction(107 * MS + 1, 107 * MS + 1, 107 * MS + 1)

        def predict(self, transformations: Sequence[Transformation]) -> Prediction:
            assert transformations
            return Prediction(95 * MS + 3, 95 * MS + 3, 95 * MS + 3)

    found = answer(Question(scales=(("host", 0.5),)), run(Logged()))
    assert sum(found.budget.values()) == 107 * MS + 1
    assert sum(found.budget_after.values()) == 95 * MS + 3
