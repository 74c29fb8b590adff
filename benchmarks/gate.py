"""Fails when the program has become slower than ``ratios.yaml`` records, by more than it allows.

    python benchmarks/gate.py             # 20 s, up to a minute if slower
    python benchmarks/gate.py --record    # writes the ratios of this tree: where it is meant to be slower, or is faster

Each ratio is that of the CPU seconds of two programs that take turns, so the speed of the machine does not count. Other
load on it does, in phases of many seconds: the best runs of one tree gave ratios of 5.5 to 7.2. So a ratio has two
estimates, of which the smaller counts, and one that is too large is measured again after the others, until it is not or
the rounds are over. A program that has become slower raises both estimates in every round.
"""

from __future__ import annotations

import statistics
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
FEWEST_ROUNDS, MOST_ROUNDS = 3, 10

Command = list[str | Path]


@dataclass(slots=True)
class Ratio:
    """CPU seconds of ``measured`` to those of ``unit``. Per round: one run of the first, two of the second."""

    name: str
    measured: Command
    unit: Command
    measured_s: list[float] = field(default_factory=list)
    unit_s: list[tuple[float, float]] = field(default_factory=list)

    def run(self) -> None:
        """A round more: the unit is short, so it runs before and after the program."""
        before, measured, after = (measure(command, OWN).cpu_s for command in (self.unit, self.measured, self.unit))
        self.measured_s.append(measured)
        self.unit_s.append((before, after))

    @property
    def value(self) -> float:
        """The ratio so far: of the best runs, or the median of the rounds where that is smaller.

        One run of the unit that was not disturbed raises the first; units that were disturbed more lower the second.
        """
        of_best = min(self.measured_s) / min(map(min, self.unit_s))
        rounds = zip(self.measured_s, self.unit_s, strict=True)
        of_rounds = [measured / statistics.mean(units) for measured, units in rounds]
        return min(of_best, statistics.median(of_rounds))


def list_ratios(folder: Path) -> list[Ratio]:
    """The ratios of the gate; ``folder`` is for what they write."""
    python, larger = sys.executable, folder / "larger.sqlite"
    measure([python, REPOSITORY / "benchmarks" / "inflate.py", SMALL, larger, "--steps", str(STEPS)], OWN)
    options: Command = ["--quiet", "--out", folder / "report"]
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
    with TemporaryDirectory() as folder:
        ratios = list_ratios(Path(folder))
        most = {ratio.name: 0.0 if record else limits[ratio.name] * (1 + growth) for ratio in ratios}
        open_ratios = ratios
        for rounds in range(1, MOST_ROUNDS + 1):
            for ratio in open_ratios:
                ratio.run()
            if rounds >= FEWEST_ROUNDS:
                open_ratios = [ratio for ratio in open_ratios if ratio.value > most[ratio.name]]
    for ratio in ratios:
        seconds = f"{min(ratio.measured_s):.2f} s / {min(map(min, ratio.unit_s)):.2f} s of CPU"
        allowed = "" if record else f"; at most {most[ratio.name]:.2f}"
        click.echo(f"{ratio.name}: {ratio.value:.2f} ({len(ratio.measured_s)} rounds, at best {seconds}{allowed})")
        limits[ratio.name] = round(ratio.value, 2) if record else limits[ratio.name]
    if record:
        head = "".join(line for line in RECORD.read_text().splitlines(keepends=True) if line.startswith("#"))
        RECORD.write_text(head + yaml.safe_dump(recorded, sort_keys=False))
    elif open_ratios:
        click.echo(
            "slower than benchmarks/ratios.yaml allows. `python benchmarks/run.py --no-peers` shows the stage; where "
            "it is meant to be slower, renew the record: python benchmarks/gate.py --record",
            err=True,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
