"""Fails when the program has become slower than ``ratios.yaml`` records, by more than it allows.

    python benchmarks/gate.py             # under 40 s
    python benchmarks/gate.py --record    # writes the ratios of this tree: where it is meant to be slower, or is faster

Each ratio is that of the CPU seconds of two programs that take turns, of each its best run, so neither the speed of the
machine nor another load on it counts. A ratio that is too large is measured again and again, until it is not or the
rounds are over: a disturbed run is slower, never faster.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.processes import OWN, REPOSITORY, measure

RECORD = REPOSITORY / "benchmarks" / "ratios.yaml"
SMALL = REPOSITORY / "sample_traces" / "wide-nvlink-alltoall.sqlite"
STEPS = 12
"""Of the larger trace, which is made from the small one: 30 MB."""
FEWEST_ROUNDS, MOST_ROUNDS = 3, 6

Command = list[str | Path]


@dataclass(slots=True)
class Ratio:
    """CPU seconds of ``measured`` to those of ``unit``, of each its best run so far."""

    name: str
    measured: Command
    unit: Command
    measured_s: float = field(default=float("inf"))
    unit_s: float = field(default=float("inf"))

    def run(self) -> None:
        """A round more. The unit is short, so it runs twice: its best run decides as much as that of the other."""
        for command in (self.unit, self.measured, self.unit):
            cpu_s = measure(command, OWN).cpu_s
            if command is self.unit:
                self.unit_s = min(self.unit_s, cpu_s)
            else:
                self.measured_s = min(self.measured_s, cpu_s)

    @property
    def value(self) -> float:
        """The ratio so far."""
        return self.measured_s / self.unit_s


def list_ratios(folder: Path) -> list[Ratio]:
    """The ratios of the gate; ``folder`` is for what they write."""
    python, larger = sys.executable, folder / "larger.sqlite"
    measure([python, REPOSITORY / "benchmarks" / "inflate.py", SMALL, larger, "--steps", str(STEPS)], OWN)
    options: Command = ["--quiet", "--no-cache", "--out", folder / "report"]
    program: Command = [python, "-m", "three_walls"]
    floor: Command = [python, REPOSITORY / "benchmarks" / "floor.py"]
    return [
        Ratio("--help to import click", [*program, "--help"], [python, "-c", "import click"]),
        Ratio("analyze to floor, 6 MB", [*program, "analyze", SMALL, *options], [*floor, SMALL]),
        Ratio("analyze to floor, 30 MB", [*program, "analyze", larger, *options], [*floor, larger]),
    ]


@click.command()
@click.option("--record", is_flag=True, help="Write the ratios instead of judging them.")
def main(record: bool) -> None:
    """Exits with 1 if a ratio is larger than its record by more than the allowed growth."""
    recorded = yaml.safe_load(RECORD.read_text())
    growth, limits = recorded["allowed_growth_fraction"], recorded["ratios"]
    is_slower = False
    with TemporaryDirectory() as folder:
        for ratio in list_ratios(Path(folder)):
            limit = 0.0 if record else limits[ratio.name] * (1 + growth)
            for rounds in range(1, MOST_ROUNDS + 1):
                ratio.run()
                if rounds >= FEWEST_ROUNDS and ratio.value <= limit:
                    break
            seconds = f"{ratio.measured_s:.2f} s / {ratio.unit_s:.2f} s of CPU"
            click.echo(f"{ratio.name}: {ratio.value:.2f} ({seconds}{'' if record else f'; at most {limit:.2f}'})")
            is_slower |= ratio.value > limit
            limits[ratio.name] = round(ratio.value, 2) if record else limits[ratio.name]
    if record:
        head = "".join(line for line in RECORD.read_text().splitlines(keepends=True) if line.startswith("#"))
        RECORD.write_text(head + yaml.safe_dump(recorded, sort_keys=False))
    elif is_slower:
        click.echo(
            "slower than benchmarks/ratios.yaml allows. `python benchmarks/run.py --no-peers` shows the stage; where "
            "it is meant to be slower, renew the record: python benchmarks/gate.py --record",
            err=True,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
