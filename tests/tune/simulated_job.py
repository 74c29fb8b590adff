"""A job whose step is known: effects of single values and of pairs, drift, noise, a limit of memory, failures."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field

from three_walls.tuning.make_space import make_space
from three_walls.tuning.trials import Choice, TriedChoice, Tunable, Variant


@dataclass
class SimulatedJob:
    """A random space. Everything follows from ``seed``."""

    seed: int
    counts: tuple[int, ...] | None = None
    """Values per setting, besides the base's."""
    noise: float | None = None
    is_harsh: bool = False
    """Whether many pairs interact or fail, and memory is short."""
    runs: int = 0
    repeated_failures: int = 0
    failed: set[Choice] = field(default_factory=set)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        if self.counts is None:
            self.counts = tuple(rng.choice((1, 1, 1, 2, 2, 3)) for _ in range(rng.randint(4, 7)))
        self.space = make_space(
            tuple(
                Tunable(f"s{number}", tuple(Variant(f"s{number}={value}") for value in range(1, count + 1)))
                for number, count in enumerate(self.counts)
            )
        )
        options = [(s, v) for s, count in enumerate(self.counts) for v in range(1, count + 1)]
        scale = rng.choice((0.03, 0.06, 0.1))
        self.alone = {option: rng.choice((0.0, rng.gauss(0, scale), rng.gauss(0, scale))) for option in options}
        pairs = [pair for pair in itertools.combinations(options, 2) if pair[0][0] != pair[1][0]]
        share = rng.choice((0.25, 0.5) if self.is_harsh else (0.05, 0.15))
        self.together = {pair: rng.gauss(0, scale * rng.choice((0.3, 0.6))) for pair in pairs if rng.random() < share}
        self.memory = {option: max(-0.2, rng.gauss(0.03, 0.08)) for option in options}
        self.limit = rng.uniform(0.1, 0.25) + (0.0 if self.is_harsh else 0.15)
        self.broken = {option for option in options if rng.random() < 0.08}
        self.broken_pairs = {pair for pair in pairs if rng.random() < (0.04 if self.is_harsh else 0.01)}
        self.drift = rng.uniform(0.005, 0.04), rng.uniform(6, 40), rng.uniform(0, 6.3)
        self.walk = 0.0
        self.step_noise = rng.uniform(0.01, 0.02)
        self.run_noise = self.noise if self.noise is not None else rng.choice((0.0, 0.003, 0.006, 0.01))

    def options(self, choice: Choice) -> list[tuple[int, int]]:
        return [(s, v) for s, v in enumerate(choice) if v]

    def step(self, choice: Choice) -> float:
        mine = self.options(choice)
        log = sum(self.alone[o] for o in mine) + sum(self.together.get(p, 0) for p in itertools.combinations(mine, 2))
        return math.exp(log)

    def fails(self, choice: Choice) -> bool:
        return bool(self.failure(choice))

    def failure(self, choice: Choice) -> str:
        """Why a run of ``choice`` fails; empty where it does not."""
        mine = self.options(choice)
        if sum(self.memory[o] for o in mine) > self.limit:
            return "out of memory"
        pairs = itertools.combinations(mine, 2)
        return "" if self.broken.isdisjoint(mine) and self.broken_pairs.isdisjoint(pairs) else "refused"

    def best(self) -> float:
        choices = itertools.product(*(range(count + 1) for count in self.counts))
        return min(self.step(c) for c in choices if not self.fails(c))

    def run(self, choice: Choice) -> TriedChoice:
        self.runs += 1
        self.walk += self.rng.gauss(0, 0.002)
        if failure := self.failure(choice):
            self.repeated_failures += choice in self.failed
            self.failed.add(choice)
            return TriedChoice(choice, None, failure=failure)
        size, period, phase = self.drift
        drift = size * math.sin(phase + self.runs * 6.283 / period) + self.walk
        level = self.step(choice) * math.exp(drift + self.rng.gauss(0, self.run_noise))
        steps = [level * math.exp(self.rng.gauss(0, self.step_noise)) for _ in range(15)]
        steps.sort()
        return TriedChoice(choice, steps[7], 1.25 * self.step_noise / math.sqrt(15))
