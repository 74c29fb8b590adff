"""Which configuration to run next, and which to keep: a function of the runs so far, from which a search goes on."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from three_walls.lib.text import format_share
from three_walls.tuning.failure_causes import FailureCauses, is_of_machine
from three_walls.tuning.memory_model import MemoryModel
from three_walls.tuning.step_model import Array, StepModel
from three_walls.tuning.trials import BASE, HUNG_LATE, OUT_OF_MEMORY, Choice, Edit, Space, TriedChoice

_CLEAR = (4.0, 3.0, 2.0)
"""Deviations by which a step with an edit has to be shorter before nothing more is measured of it, where the step
without it was measured never, once or more often: one run may be odd, and the model wrong about what did not run."""
_KEPT = 0.75
"""The same for an edit to be kept where no run is left: one of four that do not help would pass. So edits that
together gain less than what matters have to be as clear as any."""
_SHOWN = 1.0
"""The same for an edit to be shown to help."""
_BETWEEN, _BETWEEN_FIRST, _FIRST_RUNS, _DRIFTED = 3, 6, 12, 1.4
"""The best configuration runs again, so that the drift is known, once so many runs have passed since it ran last (the
second of the first so many runs, of which short searches have no more), and the machine is likely to have drifted by
the last in them, a multiple of what matters."""
_SETTLING = 8
"""Of so many runs one at the end settles whether edits help, which were tried together or beside others."""
_SUDDEN = 0.2
"""A gain (a logarithm) that a machine was seen to bring about of itself within minutes: the base of a tuning became
shorter by a quarter. What gains less is kept if the base runs again after it, and does not gain as much."""
_DISTANCE = 3
"""A configuration that is tried differs from one that ran in at most so many settings. With fewer, interactions stay
hidden; with more, the runs say little of it."""
_STOPS, _STOPS_LATE = 0.005, 0.15
"""Of what matters: nothing is run whose expected gain is smaller; the second once many runs were made."""
_MANY_RUNS = 60
_AGAIN = 1.0
"""Of what matters: a configuration that ran has to gain more to be run again, else two that are equal take all runs."""
_MOST_CHOICES = 5_000
_FEW_FAIL = 20
"""One in so many values that never ran is taken to fail, and more the more configurations failed."""
_REFUSED = 0.1
"""How likely a configuration runs that the launcher refuses by what is known of its release: a job's script may set
more than the command says."""
_LIKELY_CHANCE = 0.35
"""How likely a failure is by chance for its configuration to run once more."""
_MOST_LOST = 3
"""Runs in a row that fail although their configurations ran before: then the machine fails, not the configuration."""

Edits = set[Edit]


class TrialSearch:
    """What the runs so far say."""

    def __init__(self, space: Space, trials: Sequence[TriedChoice], most_runs: int, worth: float) -> None:
        """``worth``: the share of a step that matters."""
        self.space, self.trials, self.most_runs, self.worth = space, tuple(trials), most_runs, worth
        self.tried = tuple(dict.fromkeys(trial.choice for trial in trials))
        self.measured = tuple(dict.fromkeys(trial.choice for trial in trials if trial.step_s))
        self._failed = {trial.choice for trial in trials if not trial.step_s} - {*self.measured}
        too_large = {trial.choice for trial in trials if OUT_OF_MEMORY in trial.failure}
        self._too_large = self._failed & too_large
        self.model = StepModel(space, trials) if self.measured else None

    def next(self) -> tuple[Choice | None, str]:
        """The configuration to run, or None, and why."""
        if self.model is None:
            return self._start()
        if not self.space.settings:
            return None, "there is nothing to try"
        if len(self.trials) >= self.most_runs:
            return None, "as many runs were made as allowed"
        lost = self.trials[-_MOST_LOST:]
        if len(lost) == _MOST_LOST and all(not trial.step_s and trial.choice in self.measured for trial in lost):
            return None, "configurations fail that ran before: is the machine in order?"
        stops = self.worth * (_STOPS if len(self.trials) < _MANY_RUNS else _STOPS_LATE)
        best, unclear, left = self.best, self._unclear, self.most_runs - len(self.trials)
        choice, gain = self._find_promising()
        is_promising = gain > stops
        if not unclear and not is_promising:  # before the end, what is kept has run without each of its edits
            unclear = [each for each in self._list_apart() if each not in self.measured] or self._list_base()
        if self._is_base_due and (left == 1 or not (is_promising or unclear)):
            return self.space.base, "again, to tell a gain from a machine that became faster"
        settling = min(len(unclear), max(1, self.most_runs // _SETTLING))
        is_last = 0 < left - 1 <= settling  # what is left has to settle these
        if not unclear and not is_promising:
            return None, "nothing left promises more than what matters"
        ran = [trial.choice for trial in reversed(self.trials) if trial.step_s]
        age, between = ran.index(best) + 1, _BETWEEN if len(self.trials) >= _FIRST_RUNS else _BETWEEN_FIRST
        if age >= between and math.sqrt(age) * self.model.drift > _DRIFTED * self.worth:
            return best, "again, to tell edits from drift"
        if is_promising and not (unclear and is_last):
            again = "again, because it likelier failed by chance, and " if choice in self._failed else ""
            share = format_share(-math.expm1(-gain))  # from a logarithm
            return choice, f"{again}expected to gain {share} on the best so far"
        if unclear:
            other, _ = self._likeliest([each for each in unclear if each not in self.measured] or unclear)  # no run yet
            runs = [trial.choice for trial in self.trials]
            left_out = self.space.describe(best).items() - self.space.describe(other).items()
            edits = ", ".join(sorted(label for _, label in left_out))
            return (
                other if runs.count(other) <= runs.count(best) else best
            ), f"to tell the step with and without {edits}"
        return None, "nothing left promises more than what matters"

    def _start(self) -> tuple[Choice | None, str]:
        """Of the base, which is taken to run: once more if what broke it off seldom does so twice."""
        failed = [trial.failure for trial in self.trials]
        if not failed:
            return self.space.base, "the base"
        if len(failed) == 1 < self.most_runs and (is_of_machine(failed[0]) or failed[0].startswith(HUNG_LATE)):
            return self.space.base, "again, because it likelier failed by chance"
        return None, "the base fails"

    @cached_property
    def best(self) -> Choice:
        """The measured configuration that is likeliest the fastest."""
        return self._likeliest(self.measured, self.space.base)[0]

    @property
    def _is_base_due(self) -> bool:
        """Whether the gain may be the machine's: the base did not run since the best configuration first did."""
        assert self.model
        ran = [trial.choice for trial in self.trials if trial.step_s]
        if self.best == self.space.base or self.space.base in ran[ran.index(self.best) :]:
            return False
        (gain,), _ = self.model.gains_over(self.space.base, [self.best])
        return bool(gain < _SUDDEN)

    @cached_property
    def kept(self) -> Choice:
        """The best configuration, without edits of which it is not clear that they help."""
        assert self.model
        kept = self.best
        while True:
            fewer = [each for each in self.measured if each != kept and _edits_of(each) < _edits_of(kept)]
            unclear = [
                each
                for each in fewer
                if self.model.clarity(each, kept) < _KEPT and self.model.clarity(each, self.best) < _KEPT
            ]
            if not unclear:
                (gain,), (spread,) = self.model.gains_over(self.space.base, [kept])
                return kept if gain >= _CLEAR[-1] * spread else self.space.base
            kept, _ = self._likeliest(unclear, kept)

    @property
    def not_shown_to_help(self) -> tuple[str, ...]:
        """What is kept though it is not clear that it helps."""
        if self.model is None:
            return ()
        kept = self.space.describe(self.kept)
        doubted = [
            self.space.describe(each)
            for each in self._without_one(self.kept, _SHOWN)
            if self.model.clarity(each, self.kept) < _SHOWN
            or not (each in self.measured or self._helped_apart(self.kept, each))
        ]
        return tuple(label for fewer in doubted for name, label in kept.items() if name not in fewer)

    def _helped_apart(self, choice: Choice, fewer: Choice) -> bool:
        """Whether two runs that differ in nothing but what ``choice`` has beside ``fewer`` show that it helps."""
        assert self.model
        [place] = [place for place, number in enumerate(choice) if number != fewer[place]]
        own = [(each, _replace(each, place, BASE)) for each in self.measured if each[place] == choice[place]]
        apart = [pair for pair in own if pair[1] in self.measured]
        return any(self.model.clarity(without, having) >= _SHOWN for having, without in apart)

    def chances(self, choices: Sequence[Choice]) -> Array:
        """How likely a run of each of ``choices`` does not fail."""
        distinct = len(self.measured) + len(self._failed)
        fails = (1 + len(self._failed)) / (_FEW_FAIL + distinct)
        edits = [_edits_of(choice) for choice in choices]
        new = np.array([len(mine - self._ran) for mine in edits])
        refused = [any(clash <= {*enumerate(choice)} for clash in self._clashes) for choice in choices]
        certain = np.where(refused, _REFUSED, 1.0) * (1 - fails) ** new
        chances: Array = self._memory.chances(choices) * self._causes.chances(choices) * certain
        return chances

    @cached_property
    def _clashes(self) -> list[frozenset[Edit]]:
        """Those of the space that no run disproved."""
        ran = [{*enumerate(choice)} for choice in self.measured]
        return [clash for clash in self.space.clashes if not any(clash <= each for each in ran)]

    @cached_property
    def _ran(self) -> Edits:
        return {edit for choice in self.measured for edit in _edits_of(choice)}

    @cached_property
    def _causes(self) -> FailureCauses:
        said: dict[Choice, list[str]] = {}
        for trial in self.trials:
            if trial.choice in self._failed - self._too_large:
                said.setdefault(trial.choice, []).append(trial.failure)
        return FailureCauses(self.space.settings, said, self.measured)

    @cached_property
    def _memory(self) -> MemoryModel:
        ran = [(trial.choice, trial.memory) for trial in self.trials if trial.step_s and trial.memory]
        uses = {choice: memory for choice, memory in ran if memory.shows_activations}
        limits = [trial.limit_bytes for trial in self.trials if trial.limit_bytes]
        return MemoryModel(self.space, self.measured, sorted(self._too_large), uses, max(limits, default=None))

    @cached_property
    def _failed_by_chance(self) -> set[Choice]:
        """What failed once, and likelier by chance than for a cause: one more run is not a blind one."""
        tried = [trial.choice for trial in self.trials]
        once = [choice for choice in sorted(self._failed - self._too_large) if tried.count(choice) == 1]
        chances = self._causes.chances(once)
        return {choice for choice, chance in zip(once, chances, strict=True) if chance > _LIKELY_CHANCE}

    def _likeliest(self, choices: Sequence[Choice], reference: Choice | None = None) -> tuple[Choice, float]:
        """The fastest of ``choices`` by the model, and how much faster than ``reference`` it is."""
        assert self.model
        gains, _ = self.model.gains_over(self.best if reference is None else reference, choices)
        place = int(np.argmax(gains))
        return choices[place], float(gains[place])

    @cached_property
    def _unclear(self) -> list[Choice]:
        """The best configuration without one edit each, where it is not settled whether the edit helps."""
        assert self.model
        unclear = []
        for choice in self._list_apart():
            (gain,), (spread,) = self.model.gains_over(choice, [self.best])
            times = sum(trial.choice == choice and trial.step_s is not None for trial in self.trials)
            is_small = times > 0 and abs(gain) + spread < self.worth
            clear = _CLEAR[min(times, len(_CLEAR) - 1)]
            if (gain < clear * spread or not self._helped_apart(self.best, choice)) and not is_small:
                unclear.append(choice)
        return unclear

    def _list_base(self) -> list[Choice]:
        """The base, where it is not settled whether the best configuration is faster than it; else nothing."""
        assert self.model
        (gain,), (spread,) = self.model.gains_over(self.space.base, [self.best])
        is_settled = gain >= _CLEAR[-1] * spread or abs(gain) + spread < self.worth
        return [] if is_settled or self.best == self.space.base else [self.space.base]

    def _list_apart(self) -> list[Choice]:
        """The best configuration without one edit each, but those that failed or are likelier to fail than to run."""
        without = [each for each in self._without_one(self.best, _CLEAR[-1]) if each not in self._failed]
        return [each for each in without if self.chances([each])[0] > 0.5]

    def _without_one(self, choice: Choice, clear: float) -> list[Choice]:
        """``choice`` without one edit each, but a number that is by ``clear`` deviations faster than a smaller change
        that ran beside the same."""
        assert self.model
        without = []
        for place in (place for place, number in enumerate(choice) if number):
            fewer = _replace(choice, place, BASE)
            smaller = [_replace(choice, place, number) for number in self._list_smaller(place, choice[place])]
            ran = [each for each in smaller if each in self.measured]
            if self.space.allows(fewer) and not any(self.model.clarity(each, choice) >= clear for each in ran):
                without.append(fewer)
        return without

    def _list_smaller(self, place: int, number: int) -> list[int]:
        """The setting's numbers that lie between the base's and the one of ``number``."""
        order = self.space.settings[place].order
        return [
            other
            for other, far in enumerate(order, start=1)
            if order[number - 1] * far > 0 and abs(far) < abs(order[number - 1])
        ]

    def _find_promising(self) -> tuple[Choice | None, float]:
        """The configuration that is expected to gain most on the best one so far, counting no loss, and how much."""
        assert self.model
        near = list(itertools.islice(self._list_near(), _MOST_CHOICES))
        if not near:
            return None, 0.0
        least = _AGAIN * self.worth * np.array([choice in self.measured for choice in near])
        expected = self.model.expected_gains(self.best, near, least) * self.chances(near)
        place = int(np.argmax(expected))
        return near[place], float(expected[place])

    def _list_near(self) -> Iterator[Choice]:
        """What differs in few settings from a configuration that ran, in the fewest first, and near the best one first,
        but what failed."""
        best, listed = self.best, self._failed - self._failed_by_chance
        starts = sorted(self.measured, key=lambda each: sum(map(operator.ne, each, best)))
        numbers = [range(len(setting.values) + 1) for setting in self.space.settings]
        for count, start in itertools.product(range(1, _DISTANCE + 1), starts):
            for places in itertools.combinations(range(len(start)), count):
                for changed in itertools.product(*(numbers[place] for place in places)):
                    near = [*start]
                    for place, number in zip(places, changed, strict=True):
                        near[place] = number
                    choice = tuple(near)
                    if choice not in listed and self.space.allows(choice):
                        yield choice
                    listed.add(choice)


def _edits_of(choice: Choice) -> Edits:
    """The places and numbers of the values that differ from the base's."""
    return {(place, number) for place, number in enumerate(choice) if number}


def _replace(choice: Choice, place: int, number: int) -> Choice:
    return (*choice[:place], number, *choice[place + 1 :])
