"""Sixteen simulated ranks on two hosts against their known truth: every bucket, every wait, both late ranks.

    python benchmarks/sixteen_ranks.py [--ranks 16] [--layers 24] [--steps 6]

Each rank gets its own export. Two expert-parallel groups of half the ranks; the gradients are reduced over all. The
second host's clock is 15 ms ahead. One rank computes 1.3 times as slowly, one (in the other group) gets twice the
tokens. All times are whole nanoseconds and nothing overlaps, so every error must be exactly 0: buckets because each
nanosecond has one owner, waits because the ends of a call coincide and the offset fitted on them is exact.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "tests")]

from lockstep import MS, Behaviour, Run, simulate  # noqa: E402

from three_walls import analyze  # noqa: E402
from three_walls.report.report import Report  # noqa: E402

CLOCK_AHEAD_NS = 15 * MS
SLOW, TOKENS = 1.3, 2.0


@dataclass(frozen=True)
class Outcome:
    """What was found and what is true. ``errors_ns``: largest |found - true| of any rank, by quantity."""

    errors_ns: dict[str, int]
    stragglers: dict[int, str]
    expected: dict[int, str]
    analyzed_in_s: float
    report: Report


def build(ranks: int, layers: int, steps: int) -> tuple[Run, dict[int, str]]:
    """The simulation and its late ranks with their causes."""
    slow, imbalanced = ranks // 4, ranks - 2
    behaviours = []
    for rank in range(ranks):
        second = rank >= ranks // 2
        behaviours.append(
            Behaviour(
                slow=SLOW if rank == slow else 1.0,
                tokens=TOKENS if rank == imbalanced else 1.0,
                host="node1" if second else "node0",
                clock_ahead_ns=CLOCK_AHEAD_NS if second else 0,
            )
        )
    run = simulate(behaviours, steps=steps, group=ranks // 2, layers=layers)
    return run, {slow: "slow_compute", imbalanced: "expert_imbalance"}


def measure(folder: Path, ranks: int = 16, layers: int = 24, steps: int = 6) -> Outcome:
    """Simulates, writes, analyzes and compares."""
    run, expected = build(ranks, layers, steps)
    paths = run.write(folder)
    began = time.perf_counter()
    report = analyze(paths)
    took = time.perf_counter() - began
    found = {straggler.rank: straggler.cause for straggler in report.stragglers}
    return Outcome(_errors(run, report), found, expected, took, report)


def _errors(run: Run, report: Report) -> dict[str, int]:
    errors: dict[str, int] = defaultdict(int)
    steps = {}
    for rank in report.ranks:
        assert rank.median_index is not None
        steps[rank.rank] = rank.median_index
        truth = run.truth.buckets[(rank.rank, rank.median_index)]
        for bucket in {*truth, *rank.budget}:
            error = abs(rank.budget.get(bucket, 0) - truth.get(bucket, 0))
            errors[f"bucket {bucket}"] = max(errors[f"bucket {bucket}"], error)
    for wait in report.waits:
        true_ns = run.truth.waits[(wait.rank, steps[wait.rank])][wait.communication_class]
        name = f"wait {wait.communication_class}"
        errors[name] = max(errors[name], abs((wait.wait_ns or 0) - true_ns))
    for straggler in report.stragglers:
        late_ns = run.truth.late[(straggler.rank, steps[straggler.rank])]
        name = f"lateness of rank {straggler.rank}"
        errors[name] = abs(straggler.late_ns - late_ns)
    return dict(sorted(errors.items()))


@click.command()
@click.option("--ranks", default=16, help="Captured ranks, half of them on each host.")
@click.option("--layers", default=24)
@click.option("--steps", default=6)
def main(ranks: int, layers: int, steps: int) -> None:
    """Prints every quantity's largest error over all ranks; exits with 1 if any is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = measure(Path(folder), ranks, layers, steps)
    for name, error in outcome.errors_ns.items():
        click.echo(f"{name:32} {error:>12} ns")
    for rank, cause in sorted(outcome.expected.items()):
        click.echo(f"late rank {rank}: {cause} (found: {outcome.stragglers.get(rank, 'nothing')})")
    click.echo(f"clocks: {outcome.report.alignment}")
    click.echo(f"{ranks} ranks analyzed in {outcome.analyzed_in_s:.1f} s")
    sys.exit(0 if not any(outcome.errors_ns.values()) and outcome.stragglers == outcome.expected else 1)


if __name__ == "__main__":
    main()
