"""Jobs whose settings have Megatron Core's names, and effects as large as measured ones; run as a module it says how
well a search does on many.

    python -m tests.tune.named_jobs FIRST_SEED COUNT

Three times two micro-batches, recomputation, CUDA graphs and two fusions, which interact: graphs hold nothing that is
recomputed, the fused permutation helps without graphs alone, larger micro-batches lose by pieces of memory without
recomputation, and the largest does not fit there.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from dataclasses import dataclass

from tests.tune.run_search import run_search
from three_walls.capture.capture_guide import BRIDGE
from three_walls.tuning.make_space import list_given, make_space, most_runs_in
from three_walls.tuning.trials import OUT_OF_MEMORY, Choice, MemoryUse, TriedChoice

GIB = 1 << 30
NEAR = 0.02
NOISE, ITERATIONS = 0.012, 20
SAMPLES = 16
KEPT_GIB, LIMIT_GIB = 30.0, 76.7
RECOMPUTED_GIB, NOT_RECOMPUTED_GIB = 3.0, 12.0
"""Activations of a sample."""
GIVEN = {
    "micro_batch_size": [1, 2, 4],
    "recompute_granularity": ["full", None],
    "cuda_graph_impl": ["none", "transformer_engine"],
    "moe_permute_fusion": [False, True],
    "apply_rope_fusion": [False, True],
}
BASE = (
    "train.micro_batch_size=1",
    "model.recompute_granularity=full",
    "model.cuda_graph_impl=none",
    "model.moe_permute_fusion=false",
    "model.apply_rope_fusion=false",
)


class InteractingJob:
    """Everything follows from ``seed``. Times are those of a sample, in milliseconds."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(f"interacting {seed}")
        self.device, self.host = rng.uniform(30, 50), rng.uniform(15, 40)
        self.recomputed, self.fused = rng.uniform(0.22, 0.32), rng.uniform(0.06, 0.12)
        self.rope = -rng.uniform(0.04, 0.08) if rng.random() < 0.6 else rng.uniform(-0.006, 0.006)
        self.in_graphs, self.in_pieces = rng.uniform(0.6, 0.9), rng.uniform(0.1, 0.3)
        listed = list_given(GIVEN, BRIDGE, BASE)
        self.space = make_space(listed.settings, listed.sweep)
        choices = itertools.product(*(range(len(setting.values) + 1) for setting in self.space.settings))
        self.best = min(self.step(choice) for choice in choices if self.peak_gib(choice) <= LIMIT_GIB)

    def step(self, choice: Choice) -> float:
        """The true step."""
        size, is_not_recomputed, has_graphs, is_fused, has_rope = 2 ** choice[0], *map(bool, choice[1:])
        device = self.device * size * (1.0, 0.93, 0.9)[choice[0]]
        host = self.host * (1 - self.in_graphs * has_graphs)
        if not is_not_recomputed:
            device *= 1 + self.recomputed
            host = self.host * (1.1 if has_graphs else 1.3)
        elif size > 1:
            device *= 1 + self.in_pieces * (size - 1)
        if is_fused:
            device *= 1.04 if has_graphs else 1 - self.fused
            host *= 1.0 if has_graphs else 0.9
        return SAMPLES / size * (device * (1 + self.rope * has_rope) + host) + 25

    def peak_gib(self, choice: Choice) -> float:
        return KEPT_GIB + 2 ** choice[0] * (NOT_RECOMPUTED_GIB if choice[1] else RECOMPUTED_GIB)

    def run(self, choice: Choice) -> TriedChoice:
        if self.peak_gib(choice) > LIMIT_GIB:
            limit_gib = LIMIT_GIB + self.rng.uniform(-0.5, 1)
            return TriedChoice(choice, None, failure=OUT_OF_MEMORY, limit_bytes=round(limit_gib * GIB))
        level = self.step(choice) * math.exp(self.rng.gauss(0, 0.01))
        step_ms = statistics.fmean(level * math.exp(self.rng.gauss(0, NOISE)) for _ in range(ITERATIONS))
        memory = MemoryUse(round(KEPT_GIB * GIB), round(self.peak_gib(choice) * GIB))
        return TriedChoice(choice, step_ms / 1000, NOISE / math.sqrt(ITERATIONS), memory=memory)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a search ended."""

    distance: float
    """How much longer the step of what was kept is than the best."""
    failed: int
    """Runs."""


def search_job(seed: int) -> Outcome:
    """With a third of a sweep."""
    job = InteractingJob(seed)
    kept, trials = run_search(job.space, job.run, most_runs_in(job.space, is_given=True))
    return Outcome(job.step(kept) / job.best - 1, sum(not trial.step_s for trial in trials))


def main() -> None:
    first, count = map(int, sys.argv[1:])
    found = [search_job(seed) for seed in range(first, first + count)]
    near, failed = sum(each.distance <= NEAR for each in found), statistics.fmean(each.failed for each in found)
    sys.stdout.write(f"{near} of {count} within {NEAR:.0%} of the best, {failed:.1f} runs out of memory\n")


if __name__ == "__main__":
    main()
