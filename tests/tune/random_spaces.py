"""Jobs of random spaces, unlike those of simulated_job.py; run as a module it says how well a search does on many.

    python -m tests.tune.random_spaces FIRST_SEED COUNT

3 to 6 settings with 1 to 3 values; effects from -20% to +30% of the step; pairs that help or hinder each other, or
exclude one another; drift that is linear, a step or a wave; steps with heavy tails; memory that adds up; values and
pairs that fail, and runs that fail by chance, once; gains that were predicted well, badly, or not at all.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass

from tests.tune.run_search import run_search
from three_walls.tuning.make_space import make_space, most_runs_in
from three_walls.tuning.run_trial import Ended
from three_walls.tuning.trials import Choice, ExpectedGain, TriedChoice, Tunable, Variant

Option = tuple[int, int]
"""A setting and its value."""
ITERATIONS = 20
MOST_RUNS = 60
NEAR = 0.02
LEAST_SWEEP = 36
"""A third of fewer runs is too few for base, drift and edits."""


class RandomSpace:
    """A random job. Everything follows from ``seed``."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(f"space {seed}")
        counts = [0]
        while math.prod(count + 1 for count in counts) < LEAST_SWEEP:
            counts = [rng.randint(1, 3) for _ in range(rng.randint(3, 6))]
        options = [(s, v) for s, count in enumerate(counts) for v in range(1, count + 1)]
        self.factors = {option: 1 + _draw_effect(rng) for option in options}
        if rng.random() < 0.5:  # as of a batch that grows: each value is more of the same
            first = self.factors[0, 1] - 1
            for value in range(2, counts[0] + 1):
                self.factors[0, value] = max(0.5, 1 + first * (1 + 0.4 * (value - 1)))
        pairs = [pair for pair in itertools.combinations(options, 2) if pair[0][0] != pair[1][0]]
        interact = rng.sample(pairs, min(len(pairs), rng.choice((0, 1, 2, 3, 5, 8))))
        self.together = {pair: self._draw_pair(pair) for pair in interact}
        is_short = rng.random() < 0.5
        self.memory = {option: rng.uniform(-0.15, 0.35) for option in options}
        self.limit = rng.uniform(0.3, 0.7) if is_short else math.inf
        rare = rng.choice((0.0, 0.08))
        self.broken = {option for option in options if rng.random() < rare}
        self.broken_pairs = {pair for pair in pairs if rng.random() < rare / 4}
        self.chance = rng.choice((0.0, 0.0, 0.02, 0.05))
        self.failed_by_chance: set[Choice] = set()
        self.drift = rng.choice(("linear", "step", "wave")), rng.uniform(0.0, 0.06), rng.uniform(8, 40), rng.random()
        self.noise, self.tail = rng.uniform(0.003, 0.02), rng.choice((0.0, 0.05, 0.15))
        self.run_noise = rng.choice((0.0, 0.002, 0.005))
        self.predicts = rng.choice(("nothing", "nothing", "well", "badly"))
        self.space = make_space(
            tuple(
                Tunable(
                    f"s{s}", tuple(self._make_value(rng, (s, v)) for v in range(1, count + 1)), kind=f"kind {s % 3}"
                )
                for s, count in enumerate(counts)
            )
        )
        self.runs = 0
        choices = itertools.product(*(range(count + 1) for count in counts))
        self.best = min(self.step(choice) for choice in choices if not self.fails(choice))

    def _draw_pair(self, pair: tuple[Option, Option]) -> float:
        """A factor: more than both give, less, or slower than the better one alone."""
        size = self.rng.uniform(0.01, 0.12)
        return self.rng.choice((1 - size, 1 + size, (1 + size) / min(1.0, *(self.factors[each] for each in pair))))

    def _make_value(self, rng: random.Random, option: Option) -> Variant:
        gain = 1 - self.factors[option]
        if self.predicts == "badly":
            gain = rng.choice((-gain, gain * 2, gain + rng.uniform(-0.2, 0.2)))
        if self.predicts == "nothing":
            return Variant(f"{option}")
        spread = max(0.01, abs(gain) * 0.3)
        likely = min(0.8, max(0.0, gain + rng.gauss(0, spread / 2)))  # a plan has no entry that promises a loss
        return Variant(f"{option}", gain=ExpectedGain(likely - spread, likely, min(0.9, likely + spread)))

    def step(self, choice: Choice) -> float:
        """The true step, of the base 1."""
        mine = _options_of(choice)
        pairs = itertools.combinations(mine, 2)
        return math.prod(self.factors[each] for each in mine) * math.prod(
            self.together.get(each, 1.0) for each in pairs
        )

    def fails(self, choice: Choice) -> bool:
        return bool(self.failure(choice))

    def failure(self, choice: Choice) -> str:
        """Why a run of ``choice`` always fails; empty where it does not."""
        mine = _options_of(choice)
        if sum(self.memory[each] for each in mine) > self.limit:
            return "out of memory"
        pairs = itertools.combinations(mine, 2)
        return "" if self.broken.isdisjoint(mine) and self.broken_pairs.isdisjoint(pairs) else "refused"

    def run(self, choice: Choice) -> TriedChoice:
        self.runs += 1
        if failure := self.failure(choice):
            return TriedChoice(choice, None, failure=failure)
        if any(choice) and choice not in self.failed_by_chance and self.rng.random() < self.chance:
            self.failed_by_chance.add(choice)
            return TriedChoice(choice, None, failure="it ended with exit code 1")
        form, size, period, phase = self.drift
        done = self.runs / MOST_RUNS
        drifts = {
            "linear": done,
            "step": float(done > phase / 2),
            "wave": math.sin(6.283 * (self.runs / period + phase)),
        }
        level = self.step(choice) * (1 + size * drifts[form]) * math.exp(self.rng.gauss(0, self.run_noise))
        steps = [level * math.exp(self.rng.gauss(0, self.noise)) for _ in range(ITERATIONS)]
        steps = [each * (1 + self.rng.expovariate(3) if self.rng.random() < self.tail else 1) for each in steps]
        ended = Ended(tuple(steps), "", 0.0, 0.0)
        return TriedChoice(choice, ended.step_s, ended.error)


def _draw_effect(rng: random.Random) -> float:
    size = rng.random()
    return (
        0.0 if size < 0.15 else rng.gauss(0, 0.02) if size < 0.5 else rng.uniform(-0.4 if size < 0.9 else 0.2, 0.6) / 2
    )


def _options_of(choice: Choice) -> list[Option]:
    return [(setting, value) for setting, value in enumerate(choice) if value]


@dataclass(frozen=True)
class Outcome:
    """How a search went."""

    sweep: int
    runs: int
    distance: float
    """From the best configuration, as a share of its step."""
    loss: float
    """The most that an edit among those that were kept costs, as a share of the step; 0 where none costs anything."""


def tune(job: RandomSpace) -> Outcome:
    """Searches ``job`` as the command does with ``--space``."""
    kept, trials = run_search(job.space, job.run, most_runs_in(job.space, is_given=True))
    without = [(*kept[:place], 0, *kept[place + 1 :]) for place, number in enumerate(kept) if number]
    loss = max((1 - job.step(each) / job.step(kept) for each in without if not job.fails(each)), default=0.0)
    return Outcome(job.space.sweep, len(trials), job.step(kept) / job.best - 1, max(0.0, loss))


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    started_s, outcomes = time.monotonic(), {seed: tune(RandomSpace(seed)) for seed in range(first, first + count)}
    lines = [f"{seed}: {each}" for seed, each in outcomes.items() if each.distance > NEAR or each.loss > 0.002]
    distances, losses = ([getattr(each, name) for each in outcomes.values()] for name in ("distance", "loss"))
    lines += [
        f"near: {sum(each <= NEAR for each in distances)} of {count}; mean {statistics.mean(distances):.4f}",
        f"an edit kept that costs: {sum(each > 0 for each in losses)}; 0.5%: {sum(each > 0.005 for each in losses)}",
        f"runs: mean {statistics.mean(each.runs for each in outcomes.values()):.1f}, most of a sweep "
        f"{max(each.runs / each.sweep for each in outcomes.values()):.2f}; {time.monotonic() - started_s:.0f} s",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
