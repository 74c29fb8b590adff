"""The verdict by replays: the wall whose removal shortens the step most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.advice.builders import MS, sheet_of
from tests.advice.fake_predictor import FakePredictor
from tests.advice.test_culprit_in_plan import SLOW_RANK
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.verdict_rows import Verdict
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, Transformation
from three_walls.step.step_rows import Straggler
from three_walls.tables.buckets import SubWall, Wall

RUN: dict[str, ConfigData] = {
    "step_ns": 1000 * MS,
    "memory_recoverable_ns": 0,
    "communication_recoverable_ns": 250 * MS,
    "compute_recoverable_ns": 0,
    "host_recoverable_ns": 0,
    "wait_exposed_fraction": 0.0,
    "cuda_graph_fraction": 0.0,
    "unclassified_fraction": 0.0,
    "compute_busy_fraction": 0.5,
    "gemm_efficiency_fraction": 0.4,
}


class Walls(FakePredictor):
    """A step of 800 ms with what the removal of walls saves, in ms, by their first letters: ``{"h": 100, "ch": 300}``.

    Walls that no key names together save the sum of what they save alone.
    """

    def __init__(self, saved: Mapping[str, float], withheld: str = "", paused_ms: float = 0) -> None:
        def step(names: frozenset[str]) -> float:
            letters = "".join(sorted(name for name in names if name != "s"))
            alone = sum(saved.get(letter, 0) for letter in letters)
            return 800 - saved.get(letters, alone) - (saved.get("s", 0) if "s" in names else 0)

        super().__init__(step, missing_reason=withheld, paused_ms=paused_ms)

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        return self._predict([letter_of(change) for change in transformations])

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:
        return self.predict(transformations).likely_ns


def letter_of(change: Transformation) -> str:
    if change.action in (Action.HOST, Action.HEAL):
        return "h" if change.action is Action.HOST else "s"
    if change.select.categories == ("communication",):
        return "c"
    return "k" if change.select.categories in (("attention_unfused",), ("gemms",)) else "m"


def judged(saved: Mapping[str, float], **values: ConfigData) -> Verdict:
    return decide_verdict(sheet_of(RUN | values), predictor=Walls(saved))


def test_the_wall_is_the_one_whose_removal_saves_most_and_not_the_largest_pool() -> None:
    verdict = judged({"h": 300, "c": 50})
    assert (verdict.wall, verdict.sub_wall) == (Wall.COMPUTE_HOST, SubWall.HOST)
    assert (verdict.runner_up_wall, verdict.runner_up_sub_wall) == (Wall.COMMUNICATION, None)
    assert verdict.margin_fraction == 0.3125
    assert verdict.reason == (
        "Without host time the 800.0 ms step (replayed without the profiler) is shorter by 300.0 ms (37.5%); next, "
        "without communication, by 50.0 ms (6.2%)."
    )
    assert verdict.replayed_step_ns == 800 * MS
    saved = {each.without: each.saved_ns for each in verdict.counterfactuals}
    assert saved["compute_host.host",] == 300 * MS
    assert saved["communication", "compute_host.host"] == 350 * MS


def test_time_that_two_walls_share_is_stated() -> None:
    assert (
        "Both at once save 320.0 ms (40.0%), 80.0 ms less than the two added: they share that time."
        in judged({"h": 300, "c": 100, "ch": 320}).reason
    )
    more = judged({"h": 300, "c": 100, "ch": 500}).reason
    assert (
        "Both at once save 500.0 ms (62.5%), 100.0 ms more than the two added: that part falls only together." in more
    )


def test_two_walls_that_only_fall_together_are_not_named_alone() -> None:
    verdict = judged({"h": 40, "c": 30, "ch": 300})
    assert verdict.abstained
    assert verdict.reason == (
        "Two walls only fall together: the 800.0 ms step (replayed without the profiler) is shorter by 30.0 ms (3.8%) "
        "without communication and 40.0 ms (5.0%) without host time, but by 300.0 ms (37.5%) without both."
    )
    assert not judged({"h": 40, "c": 30}, compute_busy_fraction=0.9).abstained  # a lean step is compute


def test_walls_that_are_too_close_decide_nothing() -> None:
    verdict = judged({"h": 200, "c": 190})
    assert verdict.abstained
    assert "too close to decide" in verdict.reason


def test_halves_of_the_third_wall_that_are_too_close_are_one_wall() -> None:
    verdict = judged({"h": 60, "k": 50, "hk": 200, "c": 20})
    assert (verdict.wall, verdict.sub_wall, verdict.margin_fraction) == (Wall.COMPUTE_HOST, None, 0.225)
    assert verdict.reason == (
        "Without host time and what keeps kernels from their peak the 800.0 ms step (replayed without the profiler) is "
        "shorter by 200.0 ms (25.0%) (by 60.0 ms (7.5%) without host time alone, by 50.0 ms (6.2%) without the other "
        "half alone: too close to name one); next, without communication, by 20.0 ms (2.5%)."
    )
    assert verdict.names(Wall.COMPUTE_HOST, SubWall.HOST)
    assert not verdict.names(Wall.COMMUNICATION, None)
    # Halves far from each other are told apart, and what only falls with communication has no name.
    assert judged({"h": 160, "k": 50, "hk": 200}).sub_wall is SubWall.HOST
    assert judged({"h": 60, "k": 20, "hk": 70, "c": 50}).abstained


def test_a_lean_step_is_compute_by_the_step_without_the_profiler() -> None:
    # 600 ms of kernels are three fifths of the traced step, and three quarters of the one that nobody profiled.
    assert judged({"h": 40}, compute_busy_fraction=0.6).reason == (
        "Of the 800.0 ms step (replayed without the profiler) no wall can save more than 40.0 ms (5.0%), and only "
        "75.0% of it is compute: the rest is unexplained."
    )
    assert judged({"h": 40}, compute_busy_fraction=0.65).sub_wall is SubWall.COMPUTE


def test_what_makes_the_verdict_abstain_still_does() -> None:
    assert judged({"h": 300}, wait_exposed_fraction=0.6).abstained
    assert judged({"h": 300}, unclassified_fraction=0.5).abstained


def test_gemms_of_unknown_efficiency_keep_their_time_and_a_note_says_so() -> None:
    facts = sheet_of({name: value for name, value in RUN.items() if name != "gemm_efficiency_fraction"})
    verdict = decide_verdict(facts, predictor=Walls({"h": 300}))
    note = next(each.note for each in verdict.counterfactuals if each.without == ("compute_host.compute",))
    assert note.startswith("GEMMs keep their time, because the efficiency of the GEMMs is unknown")
    assert all(not each.note for each in judged({"h": 300}).counterfactuals)


def test_without_trusted_replays_the_verdict_is_that_of_recoverable_times() -> None:
    withheld = decide_verdict(sheet_of(RUN), predictor=Walls({"h": 300}, withheld="no launches were recorded"))
    assert withheld.wall is Wall.COMMUNICATION
    assert withheld.no_replay_reason == "no launches were recorded"
    assert replace(withheld, no_replay_reason="") == decide_verdict(sheet_of(RUN))


def test_the_walls_are_those_of_the_step_with_the_slow_rank_healed() -> None:
    straggler = Straggler(1, 300 * MS, "slow_compute", "it is slow")
    verdict = decide_verdict(sheet_of(SLOW_RANK), stragglers=[straggler], predictor=Walls({"s": 200, "h": 300}))
    assert verdict.culprit is not None
    assert verdict.counterfactuals[0].without == ("straggler",)
    assert verdict.counterfactuals[0].step_ns == 600 * MS
    host = next(each for each in verdict.counterfactuals if each.without == ("compute_host.host",))
    assert (host.step_ns, host.saved_ns) == (300 * MS, 300 * MS)
    # As traced, the rank costs more: its delay is said on the step that is judged, without the profiler.
    assert verdict.reason.startswith("Without the delay of rank 2 the step takes 600.0 ms, and that step is judged")


def test_a_late_rank_is_not_the_verdict_where_a_wall_gives_back_several_times_as_much() -> None:
    straggler = Straggler(2, 300 * MS, "launch_starved", "it is late")
    minor = decide_verdict(sheet_of(RUN | SLOW_RANK), stragglers=[straggler], predictor=Walls({"s": 20, "h": 300}))
    assert minor.culprit is None
    assert (minor.wall, minor.sub_wall) == (Wall.COMPUTE_HOST, SubWall.HOST)
    assert minor.reason.endswith(
        "Rank 2 is late, too, but that is not what holds the run back: on time, the step is shorter by 20.0 ms (2.5%)."
    )
    # The walls are those of the step as it is; what the rank costs stays beside them.
    saved = {each.without: (each.step_ns, each.saved_ns) for each in minor.counterfactuals}
    assert saved["straggler",] == (780 * MS, 20 * MS)
    assert saved["compute_host.host",] == (500 * MS, 300 * MS)


def test_a_late_rank_is_the_verdict_where_no_wall_gives_back_twice_as_much_or_it_costs_a_tenth() -> None:
    for saved in ({"s": 40, "h": 60}, {"s": 100, "h": 500}):
        verdict = decide_verdict(sheet_of(RUN | SLOW_RANK), predictor=Walls(saved))
        assert verdict.culprit is not None, saved
        assert verdict.culprit.rank == 2


def test_the_pauses_of_a_rank_go_with_its_delay_and_hide_no_wall_of_the_step_without_it() -> None:
    predictor = Walls({"s": 400, "h": 150}, paused_ms=400)
    healed = decide_verdict(sheet_of(RUN | SLOW_RANK), predictor=predictor)
    assert healed.culprit is not None
    assert (healed.wall, healed.sub_wall) == (Wall.COMPUTE_HOST, SubWall.HOST)
    assert "The host pauses" not in healed.reason
    left = decide_verdict(sheet_of(RUN), predictor=predictor)
    assert (left.wall, left.sub_wall) == (healed.wall, healed.sub_wall)
    assert left.reason.startswith(
        "The host pauses for 400.0 ms (50.0%) of the 800.0 ms step, which no setting of the model shortens; the "
        "step without is judged here. Without host time the 400.0 ms step (replayed without the profiler) is shorter "
        "by 150.0 ms (37.5%)"
    )


def test_no_wall_is_named_where_pauses_of_every_step_cost_more_than_any() -> None:
    for recur, paused_ms, abstains in ((True, 200, True), (False, 200, False), (True, 140, False)):
        verdict = decide_verdict(
            sheet_of(RUN | {"host_pauses_recur": recur}), predictor=Walls({"h": 150}, paused_ms=paused_ms)
        )
        assert verdict.abstained is abstains
        assert ("It does so in every step, and no wall holds more." in verdict.reason) is abstains


def test_what_a_wall_must_hold_is_of_the_step_without_pauses() -> None:
    # Of 150 ms that the host does not pause for 20 are enough for a wall; of 800 ms they are not.
    enough, little = (decide_verdict(sheet_of(RUN), predictor=Walls({"h": 20}, paused_ms=ms)) for ms in (650, 0))
    assert (enough.wall, enough.sub_wall) == (Wall.COMPUTE_HOST, SubWall.HOST)
    assert little.abstained


def test_what_was_traced_counts_where_the_replay_does_not_show_the_delay() -> None:
    verdict = decide_verdict(sheet_of(RUN | SLOW_RANK), predictor=Walls({"s": 0, "h": 300}))
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2
