"""Measured sweeps (measured-sweeps.yaml) as simulated jobs, whose machine drifts; run as a module it says how well a
search does on each, also with predictions that are as far off as those of measured edits are.

    python -m tests.tune.measured_sweeps FIRST_SEED COUNT [predicted]
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.tune.run_search import run_search
from three_walls.capture.capture_commands import setting_words
from three_walls.capture.capture_guide import BRIDGE
from three_walls.tuning.make_space import freeze_space, list_given, make_space
from three_walls.tuning.trials import (
    BASE,
    OUT_OF_MEMORY,
    Choice,
    Clashes,
    Edit,
    ExpectedGain,
    MemoryUse,
    Space,
    TriedChoice,
)

NEAR = 0.03
DRIFT, NOISE = 0.015, 0.02
"""Of the logarithm of a step: from run to run, and of each run; the first at most as much as the second."""
PREDICTED, PREDICTED_STILL, PREDICTED_PAIR = 0.1, 0.03, 0.6
"""How far predictions miss: logarithms of the step where runs differ by more than 1%, and where they do not, which is
what those of host-bound and device-bound runs do (benchmarks/measured_pairs.yaml); and of pairs as a share of that."""
GB = 10**9
SHARES = (4, 3, 2.4)
"""A search may have a sweep's runs divided by each of these."""


class MeasuredSweep:
    """A space of which all sets ran."""

    def __init__(self, name: str) -> None:
        found = _read()[name]
        self.given = freeze_space(found["settings"])
        count = len(self.given)
        self.sets = {_freeze(row[:count]): row[count:] for key in ("sets", "assumed") for row in found.get(key, ())}
        self.refused = found.get("refused", ())
        self.limit_gb, self.noise = found.get("limit_gb"), found.get("noise", NOISE)
        base = {name: values[0] for name, values in self.given.items()}
        words = [word for item in base.items() for word in setting_words(dict([item]), BRIDGE)]
        listed = list_given(self.given, BRIDGE, words, base)
        self.space = make_space(listed.settings, listed.sweep)
        self.space = replace(self.space, clashes=self._find_clashes(found.get("known_clashes", ())))
        self.best_ms = min(float(row[0]) for row in self.sets.values())

    def _find_clashes(self, known: Sequence[Mapping[str, Any]]) -> Clashes:
        places = {name: place for place, name in enumerate(self.given)}
        return frozenset(
            frozenset((places[name], self.given[name].index(value)) for name, value in clash.items()) for clash in known
        )

    def values_of(self, choice: Choice) -> tuple[Any, ...]:
        """Of each setting in turn."""
        return _freeze(values[number] for values, number in zip(self.given.values(), choice, strict=True))

    def step_ms(self, choice: Choice) -> float:
        """KeyError where the set fails."""
        return float(self.sets[self.values_of(choice)][0])

    def run(self, choice: Choice, rng: random.Random, drift: float) -> TriedChoice:
        """``drift``: of the logarithm of the step."""
        values = self.values_of(choice)
        if row := self.sets.get(values):
            step_ms, *peak_and_kept = row
            step_s = step_ms / 1000 * math.exp(drift + rng.gauss(0, self.noise))
            peak_bytes, kept_bytes = (round(gb * GB) for gb in peak_and_kept or (0, 0))
            memory = MemoryUse(kept_bytes, peak_bytes) if peak_and_kept else None
            return TriedChoice(choice, step_s, self.noise / 2, memory=memory)
        named = dict(zip(self.given, values, strict=True))
        for each in self.refused:
            if dict(zip(each["with"], _freeze(each["with"].values()), strict=True)).items() <= named.items():
                return TriedChoice(choice, None, failure=each["error"])
        return TriedChoice(
            choice, None, failure=OUT_OF_MEMORY, limit_bytes=round(self.limit_gb * GB) if self.limit_gb else None
        )

    def change(self, edits: Sequence[Edit]) -> float | None:
        """What ``edits`` change the base by, a logarithm; where they do not run on it, in the mean of the sets on which
        they do; None where they run on none."""
        found = []
        for choice in itertools.product(*(range(len(setting.values) + 1) for setting in self.space.settings)):
            edited = tuple(dict(edits).get(place, number) for place, number in enumerate(choice))
            runs = all(self.values_of(each) in self.sets for each in (choice, edited))
            if runs and all(choice[place] == BASE for place, _ in edits):
                found.append(math.log(self.step_ms(edited) / self.step_ms(choice)))
                if choice == self.space.base:
                    return found[-1]
        return statistics.fmean(found) if found else None

    def predicted(self, rng: random.Random) -> Space:
        """The space with predictions of values and pairs of them, as a capture of the base gives them."""
        miss = PREDICTED if self.noise > 0.01 else PREDICTED_STILL
        settings, steps = [], {}
        for place, setting in enumerate(self.space.settings):
            values = []
            for number, value in enumerate(setting.values, start=1):
                if (change := self.change([(place, number)])) is not None:
                    steps[place, number] = change = change + rng.gauss(0, miss)
                    ends = (min(0.9, 1 - math.exp(change + off)) for off in (1.28 * miss, 0.0, -1.28 * miss))
                    value = replace(value, gain=ExpectedGain(*ends))
                values.append(value)
            settings.append(replace(setting, values=tuple(values)))
        together = dict(self.space.together)
        for one, other in itertools.combinations(steps, 2):
            if one[0] != other[0]:
                both, alone = self.change([one, other]), [self.change([each]) or 0.0 for each in (one, other)]
                is_known = both is not None and min(abs(steps[one]), abs(steps[other])) > 0.03
                missed = rng.gauss(0, PREDICTED_PAIR * miss)
                together[frozenset((one, other))] = (both or 0.0) - sum(alone) + missed if is_known else 0.0
        return replace(self.space, settings=tuple(settings), together=together)

    def search(self, seed: int, most_runs: int, is_predicted: bool = False) -> Choice:
        """What is kept. ``is_predicted``: by a capture, which counts as a run."""
        space = self.predicted(random.Random(7 * seed + 1)) if is_predicted else self.space
        most_runs -= is_predicted
        rng, drift = random.Random(seed), 0.0

        def run(choice: Choice) -> TriedChoice:
            nonlocal drift
            drift += rng.gauss(0, min(DRIFT, self.noise))
            return self.run(choice, rng, drift)

        return run_search(space, run, most_runs)[0]

    def distance(self, kept: Choice) -> float:
        """How much longer its step is than the best."""
        return self.step_ms(kept) / self.best_ms - 1


def _freeze(values: Iterable[Any]) -> tuple[Any, ...]:
    """With tuples for lists, and for what is set together."""
    listed = (value.items() if isinstance(value, Mapping) else value for value in values)
    is_one = (str, int, float, type(None))
    return tuple(value if isinstance(value, is_one) else _freeze(value) for value in listed)


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("measured-sweeps.yaml").read_text())
    return found


def list_sweeps() -> list[str]:
    return [*_read()]


def main() -> None:
    (first, count), is_predicted = map(int, sys.argv[1:3]), sys.argv[3:] == ["predicted"]
    seeds, near, total = range(first, first + count), 0, 0
    for name in list_sweeps():
        sweep = MeasuredSweep(name)
        for share in SHARES:
            most_runs = int(sweep.space.sweep / share)
            found = [sweep.distance(sweep.search(seed, most_runs, is_predicted)) for seed in seeds]
            near, total = near + (here := sum(each <= NEAR for each in found)), total + count
            told = f"{here} of {count} within {NEAR:.0%} of the best, {statistics.fmean(found):.1%} off in the mean"
            sys.stdout.write(f"{name}, {most_runs} of {sweep.space.sweep} runs: {told}\n")
    sys.stdout.write(f"{near} of {total}\n")


if __name__ == "__main__":
    main()
