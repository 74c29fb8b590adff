"""The search finds nearly the best configuration in few runs, whatever drifts, interacts, fails or needs memory."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from tests.tune import random_spaces
from tests.tune.measured_sweeps import MeasuredSweep, list_sweeps
from tests.tune.named_jobs import NEAR, search_job
from tests.tune.random_spaces import RandomSpace
from tests.tune.run_search import WORTH, run_search
from tests.tune.simulated_job import SimulatedJob
from three_walls.capture.capture_guide import BRIDGE
from three_walls.lib.plain_data import ConfigData
from three_walls.tuning.choose_trial import TrialSearch
from three_walls.tuning.make_space import list_given, make_space
from three_walls.tuning.step_model import StepModel
from three_walls.tuning.trials import (
    OUT_OF_MEMORY,
    Choice,
    ExpectedGain,
    MemoryUse,
    Space,
    TriedChoice,
    Tunable,
    Variant,
)

MOST_OFF = 0.02


def search_of(job: SimulatedJob, trials: list[TriedChoice]) -> TrialSearch:
    return TrialSearch(job.space, trials, job.space.sweep // 3, WORTH)


def tune(job: SimulatedJob) -> tuple[Choice, list[TriedChoice]]:
    return run_search(job.space, job.run, job.space.sweep // 3)


@pytest.mark.parametrize("seed", range(4))
def test_a_third_of_a_sweep_finds_nearly_the_best(seed: int) -> None:
    job = SimulatedJob(seed, counts=(1, 1, 2, 1, 2))
    kept, trials = tune(job)
    assert job.step(kept) <= (1 + MOST_OFF) * job.best()
    assert len(trials) <= job.space.sweep / 3
    assert job.repeated_failures == 0


@pytest.mark.exhaustive  # those of another kind stand for them
def test_of_many_spaces_nearly_all_are_searched_well_and_no_failure_is_repeated() -> None:
    jobs = [job for seed in range(100, 140) if 60 <= (job := SimulatedJob(seed)).space.sweep <= 600]
    kept = [tune(job)[0] for job in jobs]
    off = [job.step(choice) / job.best() - 1 for job, choice in zip(jobs, kept, strict=True)]
    assert sum(each > MOST_OFF for each in off) <= len(jobs) // 10
    assert sum(off) / len(off) < MOST_OFF / 2
    assert not any(job.repeated_failures for job in jobs)
    assert max(job.step(choice) for job, choice in zip(jobs, kept, strict=True)) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("spaces", [2, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_of_spaces_of_another_kind_nearly_all_are_searched_well_and_hardly_an_edit_is_kept_that_loses(
    spaces: int,
) -> None:
    outcomes = [random_spaces.tune(RandomSpace(seed)) for seed in range(2000, 2000 + spaces)]
    assert sum(each.distance > MOST_OFF for each in outcomes) <= len(outcomes) // 8
    assert sum(each.loss > WORTH / 2 for each in outcomes) <= len(outcomes) // 40
    assert max(each.runs / each.sweep for each in outcomes) <= 1 / 3


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_micro_batch_is_found_though_less_recompute_beside_it_is_out_of_memory(seed: int) -> None:
    sweep = MeasuredSweep("block-recompute")
    assert sweep.values_of(sweep.search(seed, sweep.space.sweep // 3))[:2] == (8, 8)


def count_best(name: str, *values: ConfigData, runs: int = 8) -> int:
    """Of ten searches of a measured sweep of 24 sets those that keep ``values``."""
    sweep = MeasuredSweep(name)
    return [sweep.values_of(sweep.search(seed, runs)) for seed in range(10)].count(values)


@pytest.mark.parametrize("name", ["dots-memory-short", "seed-oss-tuned"])
def test_predictions_find_what_a_third_of_the_runs_do_not(name: str) -> None:
    sweep = MeasuredSweep(name)
    near = [[sweep.distance(sweep.search(seed, 8, predicted)) <= NEAR for seed in range(6)] for predicted in (0, 1)]
    assert sum(near[0]) <= 1
    assert sum(near[1]) >= 4


def test_what_settings_change_together_may_be_as_much_as_what_one_does_alone() -> None:
    assert count_best("latent-shared-sweep", 2, None, True, "transformer_engine") >= 9


def test_three_changes_at_once_find_a_set_that_two_do_not_lead_to() -> None:
    assert count_best("minimax-m3-tuned", 4, "full", True, True) >= 9


@pytest.mark.parametrize("name", list_sweeps())
def test_what_a_measured_sweep_refuses_or_has_no_memory_for_fails_and_all_else_runs(name: str) -> None:
    sweep, rng = MeasuredSweep(name), random.Random(0)
    numbers = (range(len(setting.values) + 1) for setting in sweep.space.settings)
    ran = [sweep.run(choice, rng, 0.0) for choice in itertools.product(*numbers)]
    assert len(ran) == sweep.space.sweep
    assert {sweep.values_of(each.choice) for each in ran if each.step_s} == {*sweep.sets}
    assert not any(clash <= {*enumerate(each.choice)} for clash in sweep.space.clashes for each in ran if each.step_s)


def test_what_a_value_usually_does_is_expected_until_a_run_shows_otherwise() -> None:
    space = make_space((Tunable("a", (Variant("a", usual=-0.4),)), Tunable("b", (Variant("b"),))))
    base = TriedChoice((0, 0), 1.0, 0.001)
    (usual, other), _ = StepModel(space, [base]).gains_over((0, 0), [(1, 0), (0, 1)])
    assert (usual, other) == (pytest.approx(0.4), pytest.approx(0.0, abs=1e-9))
    (measured,), _ = StepModel(space, [base, TriedChoice((1, 0), 1.1, 0.001)] * 3).gains_over((0, 0), [(1, 0)])
    assert measured == pytest.approx(-math.log(1.1), abs=0.01)


def test_two_that_are_equal_do_not_take_all_runs() -> None:
    job = SimulatedJob(1, counts=(1, 1, 1))
    job.alone = {(0, 1): -0.1, (1, 1): 0.0, (2, 1): 0.2}
    job.together, job.memory, job.broken, job.broken_pairs = {}, dict.fromkeys(job.memory, 0.0), set(), set()
    kept, trials = run_search(job.space, job.run, 60)
    assert len(trials) < 30
    assert kept[0]


def test_where_there_is_nothing_to_try_the_base_is_kept_and_the_search_ends() -> None:
    base = TriedChoice((), 0.228, error=0.002)
    search = TrialSearch(Space((), 1), [base], 1, WORTH)
    assert search.next() == (None, "there is nothing to try")
    assert search.best == search.kept == ()
    assert TrialSearch(Space((), 1), [], 1, WORTH).next() == ((), "the base")
    assert TrialSearch(Space((), 1), [TriedChoice((), None)], 1, WORTH).next() == (None, "the base fails")


def test_where_nothing_helps_the_base_is_kept() -> None:
    job = SimulatedJob(1, counts=(1, 1, 1, 1, 1))
    job.alone = dict.fromkeys(job.alone, 0.002)
    job.together, job.memory, job.broken, job.broken_pairs = {}, dict.fromkeys(job.memory, 0.0), set(), set()
    assert tune(job)[0] == job.space.base


def test_a_base_that_fails_ends_the_search() -> None:
    job = SimulatedJob(1)
    search = search_of(job, [TriedChoice(job.space.base, None, failure="crash")])
    assert search.next() == (None, "the base fails")
    only = TrialSearch(Space((), 1), [TriedChoice((), None, failure="crash")], 1, WORTH)
    assert only.next() == (None, "the base fails")


def test_a_base_that_hung_after_some_iterations_runs_once_more_where_a_run_is_left() -> None:
    hung = TriedChoice((), None, failure="it hung after 8 iterations: no more for 60 s")
    assert TrialSearch(Space((), 1), [hung], 2, WORTH).next()[0] == ()
    assert TrialSearch(Space((), 1), [hung], 1, WORTH).next() == (None, "the base fails")
    assert TrialSearch(Space((), 1), [hung, hung], 3, WORTH).next() == (None, "the base fails")
    silent = TriedChoice((), None, failure="it hung: no iteration for 60 s")  # as one whose log nobody can read
    assert TrialSearch(Space((), 1), [silent], 2, WORTH).next() == (None, "the base fails")


def test_a_machine_on_which_everything_fails_ends_the_search() -> None:
    job = SimulatedJob(1)
    base = job.space.base
    search = search_of(
        job,
        [TriedChoice(base, 1.0), *(TriedChoice(base, None, failure="crash") for _ in range(3))],
    )
    assert search.next()[0] is None


@pytest.mark.parametrize(
    ("failures", "is_again"), [(("it hung",), True), (("it hung", "it hung"), False), ((OUT_OF_MEMORY,), False)]
)
def test_what_failed_though_all_in_it_ran_elsewhere_runs_once_more(failures: tuple[str, ...], is_again: bool) -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in ("first", "second", "third")))
    steps = {
        (0, 0, 0): 1.0,
        (1, 0, 0): 0.8,
        (0, 1, 0): 0.8,
        (0, 0, 1): 1.2,
        (1, 0, 1): 0.96,
        (0, 1, 1): 0.96,
        (1, 1, 1): 0.77,
    }
    trials = [TriedChoice(choice, step, 0.002) for choice, step in steps.items()]
    trials += [TriedChoice((1, 1, 0), None, failure=failure) for failure in failures]
    choice, why = TrialSearch(space, trials, 20, WORTH).next()
    assert (choice == (1, 1, 0) and why.startswith("again, because it likelier failed by chance")) is is_again


def test_a_pair_that_failed_leaves_its_values_a_chance() -> None:
    job = SimulatedJob(1, counts=(1, 1, 1, 1))
    trials = [
        TriedChoice((0, 0, 0, 0), 1.0),
        TriedChoice((1, 1, 0, 0), None, failure="it ended with exit code 1"),
        TriedChoice((1, 0, 0, 0), 0.99),
    ]
    pair, suspect, other = search_of(job, trials).chances([(1, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)])
    assert pair < 0.1 < suspect < other


def test_a_value_that_failed_beside_the_bases_may_need_another_there() -> None:
    job = SimulatedJob(1, counts=(1, 1, 1))
    trials = [
        TriedChoice((0, 0, 0), 1.0),
        TriedChoice((1, 0, 0), None, failure="AssertionError: an option of the overlap needs the overlap"),
        *(TriedChoice(choice, 0.99) for choice in ((0, 1, 0), (0, 0, 1), (0, 1, 1))),
    ]
    again, beside, beside_both = search_of(job, trials).chances([(1, 0, 0), (1, 1, 0), (1, 1, 1)])
    assert 2 * again < beside < beside_both < 0.5
    trials.append(TriedChoice((1, 1, 1), None, failure="AssertionError: an option of the overlap needs the overlap"))
    assert search_of(job, trials).chances([(1, 1, 0)])[0] < beside / 2  # it is no value of theirs that it needs


def test_a_value_that_is_out_of_memory_may_fit_beside_one_that_needs_less() -> None:
    job = SimulatedJob(1, counts=(1, 1, 1, 1))
    ran, out_of = [(0, 0, 0, 0), (1, 1, 0, 0)], [(1, 0, 0, 0), (1, 0, 0, 1)]
    trials = [TriedChoice(choice, 1.0) for choice in ran]
    trials += [TriedChoice(choice, None, failure="out of memory in forward") for choice in out_of]
    relieved, alike, unknown = search_of(job, trials).chances([(1, 1, 1, 0), (1, 0, 1, 0), (0, 0, 1, 0)])
    assert alike < 0.5 < relieved < unknown


GIB = 1 << 30
NEEDED_GIB = 10, 2, (1, 3, 7)
"""Kept between steps; activations of a sequence with every layer recomputed; their growth with 8, 4 and 0 of them."""


def need(choice: Choice) -> MemoryUse:
    kept, each, recompute = NEEDED_GIB
    return MemoryUse(kept * GIB, (kept + each * 2 ** choice[0] * recompute[choice[1]]) * GIB)


def test_what_a_micro_batch_needs_follows_from_what_the_base_prints() -> None:
    base = ["train.micro_batch_size=1", "model.recompute_num_layers=8"]
    listed = list_given({"micro_batch_size": [1, 2, 4, 8], "recompute_num_layers": [8, 4, 0]}, BRIDGE, base)
    space = make_space(listed.settings, listed.sweep)
    trials = [
        TriedChoice((0, 0), 1.0, memory=need((0, 0))),  # 12 GiB
        TriedChoice((0, 2), 1.0, memory=need((0, 2))),  # 24 GiB
        TriedChoice((3, 2), None, failure=OUT_OF_MEMORY, limit_bytes=30 * GIB),
    ]
    search = TrialSearch(space, trials, 8, WORTH)
    small, large, between, too_large = search.chances([(2, 0), (3, 0), (1, 1), (1, 2)])  # 18, 26, 22 and 38 GiB
    assert min(small, between) > 0.7
    assert 0.6 < large < 0.9
    assert too_large < 0.2
    untold = [replace(trial, memory=None, limit_bytes=None) for trial in trials]
    assert TrialSearch(space, untold, 8, WORTH).chances([(1, 2)]) > 0.3


def test_what_a_base_prints_is_no_sign_that_memory_is_short() -> None:
    """Of an H200 too little is known before a run is out of memory: its 141 GB are in no log."""
    base = ["train.micro_batch_size=1", "model.recompute_granularity=full"]
    listed = list_given({"micro_batch_size": [1, 2, 4], "recompute_granularity": ["full", None]}, BRIDGE, base)
    space = make_space(listed.settings, listed.sweep)
    printed = TriedChoice((0, 0), 1.0, memory=MemoryUse(38 * GIB, 39 * GIB))
    refused = TriedChoice((0, 1), None, failure=OUT_OF_MEMORY, limit_bytes=42 * GIB)
    for trials, is_likely in (([printed], True), ([printed, refused], False)):
        fits = TrialSearch(space, trials, 8, WORTH).chances([(2, 1)])[0]
        assert (fits > 0.5) == is_likely, fits


def test_what_needs_as_much_as_a_configuration_that_was_out_of_memory_is_out_of_it_too() -> None:
    """Graphs are known to need nothing, a fused loss to save a third: beside what was refused only that may fit."""
    names = {"micro_batch_size": [1, 4], "recompute_granularity": ["full", None], "cuda_graph_impl": ["none", "x"]}
    base = ["train.micro_batch_size=1", "model.recompute_granularity=full", "model.cuda_graph_impl=none"]
    listed = list_given(
        {**names, "cross_entropy_loss_fusion": [False, True]}, BRIDGE, [*base, "model.cross_entropy_loss_fusion=false"]
    )
    space = make_space(listed.settings, listed.sweep)
    ran = {(0, 0, 0, 0): 33, (1, 0, 0, 0): 42, (1, 0, 1, 0): 42, (0, 0, 0, 1): 32}
    trials = [TriedChoice(choice, 1.0, memory=MemoryUse(30 * GIB, peak * GIB)) for choice, peak in ran.items()]
    trials.append(TriedChoice((1, 1, 0, 0), None, failure=OUT_OF_MEMORY, limit_bytes=77 * GIB))
    same, less, smaller = TrialSearch(space, trials, 10, WORTH).chances([(1, 1, 1, 0), (1, 1, 0, 1), (0, 1, 0, 0)])
    assert same < 0.3 < 0.6 < less, (same, less)
    assert smaller > 0.9
    trials.append(TriedChoice((1, 1, 1, 0), None, failure=OUT_OF_MEMORY, limit_bytes=77 * GIB))
    assert TrialSearch(space, trials, 10, WORTH).chances([(1, 1, 1, 0)])[0] < same


def test_searches_do_not_stay_where_memory_was_short() -> None:
    found = [search_job(seed) for seed in range(24)]
    assert sum(each.distance <= NEAR for each in found) >= 16
    assert sum(each.failed for each in found) < 5 * len(found)


def test_a_setting_that_usually_changes_much_is_tried_before_others() -> None:
    base = ["train.micro_batch_size=1", "model.cuda_graph_impl=none", "model.apply_rope_fusion=false"]
    given = {"apply_rope_fusion": [False, True], "cuda_graph_impl": ["none", "transformer_engine"], "other": [1, 2]}
    listed = list_given(given, BRIDGE, [*base, "other=1"])
    space = make_space(listed.settings, listed.sweep)
    choice, _ = TrialSearch(space, [TriedChoice(space.base, 1.0, 0.01)], 8, WORTH).next()
    assert choice is not None
    assert choice[1] == 1


def test_a_micro_batch_that_is_listed_in_two_spellings_has_its_activations_twice() -> None:
    listed = list_given({"micro_batch_size": [1, 2, 2.0]}, BRIDGE, ["train.micro_batch_size=1"])
    space = make_space(listed.settings, listed.sweep)
    search = TrialSearch(space, [TriedChoice((0,), 1.0, memory=need((0, 0)))], 8, WORTH)
    two, same = search.chances([(1,), (2,)])
    assert two == pytest.approx(same)


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_that_gains_where_each_value_loses_is_found(seed: int) -> None:
    job = SimulatedJob(seed, counts=(1, 1, 1, 1, 1, 1), noise=0.003)
    job.alone = {(setting, 1): log for setting, log in enumerate((-0.1, 0.03, -0.05, 0.03, 0.0, 0.0))}
    job.together = {((1, 1), (3, 1)): -0.12}
    job.memory, job.broken, job.broken_pairs = dict.fromkeys(job.memory, 0.0), set(), set()
    kept, trials = tune(job)
    assert kept[1] == kept[3] == 1
    assert len(trials) <= job.space.sweep / 3


def test_a_setting_that_usually_changes_more_may_do_so_though_others_changed_nothing() -> None:
    settings = (Tunable("seen", (Variant("seen"),)), Tunable("unseen", (Variant("unseen"),), usual_ratio=2.0))
    trials = [TriedChoice(choice, 1.0, 0.001) for choice in [(0, 0), (1, 0)] * 4]
    model = StepModel(make_space(settings), trials)
    gains, spreads = model.gains_over((0, 0), [(1, 0), (0, 1)])
    assert gains == pytest.approx(0.0, abs=0.005)
    assert spreads[0] < 0.01 < 0.05 < spreads[1]
    expected = model.expected_gains((0, 0), [(1, 0), (0, 1)], np.array([0.0, 0.0]))
    assert expected[0] < 0.004 < 0.02 < expected[1]
    assert (model.expected_gains((0, 0), [(1, 0), (0, 1)], np.array([0.01, 0.01])) < expected).all()


def test_a_draw_of_sizes_that_explains_the_runs_badly_does_not_count() -> None:
    space = make_space((Tunable("large", (Variant("large"),)), Tunable("small", (Variant("small"),))))
    steps = {(0, 0): 1.0, (1, 0): 0.5, (0, 1): 1.001, (1, 1): 0.5}
    model = StepModel(space, [TriedChoice(choice, step, 0.001) for choice, step in [*steps.items()] * 3])
    (gain,), (spread,) = model.gains_over((0, 0), [(1, 0)])
    assert math.exp(-gain) == pytest.approx(0.5, abs=0.01)
    assert spread < 0.01
    assert model.drift < 0.004


def test_what_lies_near_any_run_is_tried_and_not_only_what_lies_near_the_best() -> None:
    """Larger micro-batches need recomputation, graphs need none: three changes from the best configuration so far."""
    names = ("micro_batch_size", "recompute_granularity", "cuda_graph_impl")
    space = make_space(tuple(Tunable(name, (Variant(name),), usual_ratio=4.0) for name in names))
    steps_s = {(0, 0, 0): 1.0, (1, 0, 0): 0.8, (0, 1, 0): 0.95, (0, 1, 1): 0.6}
    refused = "AssertionError: full recompute is only supported with full iteration CUDA graph"
    trials = [TriedChoice(space.base, 1.0, 0.001), TriedChoice((1, 0, 0), 0.8, 0.001)] * 2
    trials += [TriedChoice(choice, None, failure=OUT_OF_MEMORY) for choice in ((1, 1, 0), (1, 1, 1))]
    trials += [TriedChoice(choice, None, failure=refused) for choice in ((0, 0, 1), (1, 0, 1))]
    while (choice := TrialSearch(space, trials, 20, WORTH).next()[0]) is not None:
        trials.append(TriedChoice(choice, steps_s[choice], 0.001))
    assert TrialSearch(space, trials, 40, WORTH).kept == (0, 1, 1)


def test_what_an_edit_is_expected_to_gain_is_said_as_a_share_of_the_step() -> None:
    quick = Tunable("batch", (Variant("twice", gain=ExpectedGain(0.65, 0.67, 0.69)),))
    search = TrialSearch(Space((quick,), 2), [TriedChoice((0,), 1.0, 0.01)], 9, WORTH)
    _, why = search.next()
    share = float(why.removeprefix("expected to gain ").partition("%")[0])
    assert 55 <= share <= 75, why  # its logarithm would be 111


def test_all_that_ran_is_combined_before_a_search_ends_if_it_promises_more_together() -> None:
    job = SimulatedJob(1, counts=(1, 1, 1), noise=0.001)
    choices = [choice for choice in itertools.product((0, 1), repeat=3) if sum(choice) < 3]
    steps = (1.0, 1.05, 1.03)  # of the base, one edit, and two: three would take 0.95
    trials = [TriedChoice(choice, steps[sum(choice)], 0.001) for choice in (*choices, job.space.base)]
    choice, why = TrialSearch(job.space, trials, 30, WORTH).next()
    assert choice == (1, 1, 1), why


@pytest.mark.parametrize("seed", [5, 7, 27])
def test_before_a_search_ends_what_is_kept_has_run_without_each_of_its_edits(seed: int) -> None:
    job = SimulatedJob(seed, counts=(1, 1, 2, 1, 2))
    _, trials = run_search(job.space, job.run, job.space.sweep)
    assert len(trials) < job.space.sweep  # it ends by itself
    best = TrialSearch(job.space, trials, job.space.sweep, WORTH).best
    fewer = {(*best[:place], 0, *best[place + 1 :]) for place, number in enumerate(best) if number}
    assert fewer
    assert fewer <= {trial.choice for trial in trials}


@pytest.mark.parametrize(("took", "is_clear"), [(0.99, False), (0.9, False), (0.7, True)])
def test_before_a_search_ends_the_base_runs_again_unless_no_machine_becomes_so_much_faster(
    took: float, is_clear: bool
) -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "ab"))
    runs = [TriedChoice((0, 0), 1.0, 0.003)]  # once, long ago
    for drift in (0.0, 0.01) * 3:
        steps = {(1, 1): took + drift, (1, 0): took + 0.022 - drift, (0, 1): took + 0.012 + drift}
        runs += [TriedChoice(choice, step, 0.003) for choice, step in steps.items()]
    choice, why = TrialSearch(space, [*runs, TriedChoice((1, 1), took, 0.003)], 60, WORTH).next()
    assert choice == (None if is_clear else (0, 0)), why


def test_what_is_kept_without_a_run_that_lacks_it_alone_is_named() -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "abc"))
    runs = [TriedChoice((0, 0, 0), 0.2), TriedChoice((1, 1, 1), 0.18), TriedChoice((0, 0, 0), 0.2)]
    assert TrialSearch(space, runs, 3, WORTH).not_shown_to_help == ("a=1", "b=1", "c=1")
    apart = [*runs, *(TriedChoice(choice, 0.19) for choice in ((0, 1, 1), (1, 0, 1), (1, 1, 0)))]
    assert TrialSearch(space, apart, 6, WORTH).not_shown_to_help == ()
    assert TrialSearch(space, [], 3, WORTH).not_shown_to_help == ()


@pytest.mark.parametrize(("each", "is_kept"), [(0.02, True), (0.005, False)])
def test_edits_that_are_clear_together_are_not_left_out_one_after_the_other(each: float, is_kept: bool) -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "abc"))
    choices = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)]
    runs = [TriedChoice(choice, 1.0 - each * sum(choice), 0.012) for choice in (*choices, choices[0])]
    search = TrialSearch(space, runs, len(runs), WORTH)
    assert search.model is not None
    alone = [search.model.clarity(fewer, more) for fewer, more in itertools.pairwise(choices)]
    assert max(alone) < 1.3  # none is clear beside the one before it
    assert any(search.kept) is is_kept


@pytest.mark.parametrize(("drift", "is_again"), [(0.0, False), (0.03, True)])
def test_the_best_runs_again_only_where_the_machine_may_have_drifted(drift: float, is_again: bool) -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "abcd"))
    steps = {(0, 0, 0, 0): 1.0, (1, 0, 0, 0): 0.9, (0, 1, 0, 0): 1.1, (0, 0, 1, 0): 1.12, (0, 1, 1, 0): 1.2}
    order = [(0, 0, 0, 0), (1, 0, 0, 0)] * 5 + [(0, 1, 0, 0), (0, 0, 1, 0), (0, 1, 1, 0)]
    runs = [TriedChoice(choice, steps[choice] * (1 + drift) ** number, 0.001) for number, choice in enumerate(order)]
    search = TrialSearch(space, runs, 30, WORTH)
    assert search.best == (1, 0, 0, 0)
    assert (search.next() == (search.best, "again, to tell edits from drift")) is is_again


@pytest.mark.parametrize(("later", "is_kept"), [(1.0, True), (0.92, False)])
def test_a_gain_is_kept_if_the_base_does_not_gain_as_much_of_itself(later: float, is_kept: bool) -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "abc"))
    after = [TriedChoice(choice, 0.92, 0.001) for choice in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0))]
    runs = [TriedChoice((0, 0, 0), 1.0, 0.001), *(after if later < 1 else (after[0], after[0]))]
    search = TrialSearch(space, runs, len(runs) + 1, WORTH)
    assert search.next() == ((0, 0, 0), "again, to tell a gain from a machine that became faster")
    runs.append(TriedChoice((0, 0, 0), later, 0.001))
    assert any(TrialSearch(space, runs, len(runs), WORTH).kept) is is_kept


def test_edits_that_all_runs_had_together_are_told_apart_however_much_they_gain() -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "ab"))
    runs = [TriedChoice((0, 0), 1.0), TriedChoice((1, 1), 0.4), TriedChoice((0, 0), 1.0), TriedChoice((1, 1), 0.4)]
    together = TrialSearch(space, runs, 4, WORTH)
    assert together.kept == (1, 1)
    assert together.not_shown_to_help == ("a=1", "b=1")
    choice, why = TrialSearch(space, runs, 6, WORTH).next()
    assert choice in ((0, 1), (1, 0)), why
    one = [*runs, TriedChoice((1, 0), 0.95)]
    assert TrialSearch(space, one, 6, WORTH).not_shown_to_help == ("a=1",)  # beside b, which no run has alone
    assert TrialSearch(space, [*one, TriedChoice((0, 1), 0.5)], 6, WORTH).not_shown_to_help == ()


def test_an_edit_that_only_sums_tell_apart_is_named() -> None:
    """Two runs with another edit each, and one with all three: only if their effects add up do they tell ``a``."""
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "abc"))
    steps = {(0, 0, 0): 1.0, (1, 1, 0): 0.5, (1, 0, 1): 0.8, (1, 1, 1): 0.35}
    runs = [TriedChoice(choice, step, 0.001) for choice, step in steps.items()]
    assert TrialSearch(space, runs, 4, WORTH).not_shown_to_help == ("a=1",)
    alone = TriedChoice((0, 1, 0), 0.6, 0.001)
    assert TrialSearch(space, [*runs, alone], 5, WORTH).not_shown_to_help == ()


def test_a_number_that_is_clearly_faster_than_a_smaller_one_beside_the_same_is_not_doubted() -> None:
    batch = Tunable("batch", tuple(Variant(f"batch={number}") for number in (2, 4)), order=(1, 2))
    space = make_space((batch, Tunable("fused", (Variant("fused=1"),))))
    runs = [TriedChoice((0, 0), 1.0), TriedChoice((2, 1), 0.4), TriedChoice((0, 0), 1.0), TriedChoice((2, 1), 0.4)]
    assert TrialSearch(space, runs, 4, WORTH).not_shown_to_help == ("batch=4", "fused=1")
    slower = TrialSearch(space, [*runs, TriedChoice((1, 1), 0.6)], 5, WORTH)
    assert slower.not_shown_to_help == ("fused=1",)
    equal = TrialSearch(space, [*runs, TriedChoice((1, 1), 0.4)], 5, WORTH)
    assert equal.not_shown_to_help == ("batch=4", "fused=1")


def test_what_the_launcher_refuses_is_run_last_and_once_it_ran_like_any_other() -> None:
    space = make_space(tuple(Tunable(name, (Variant(f"{name}=1"),)) for name in "ab"))
    clashing = replace(space, clashes=frozenset({frozenset({(0, 1), (1, 1)})}))
    base = [TriedChoice((0, 0), 1.0, 0.01)]
    assert TrialSearch(space, base, 9, WORTH).next()[0] == (1, 1)
    search = TrialSearch(clashing, base, 9, WORTH)
    assert search.next()[0] in ((1, 0), (0, 1))
    refused, allowed = search.chances([(1, 1), (1, 0)])
    assert refused < 0.2 * allowed
    ran = TrialSearch(clashing, [*base, TriedChoice((1, 1), 0.7, 0.01)], 9, WORTH)
    assert ran.chances([(1, 1)])[0] > 0.8
