"""``python -m tests.fuzz``: attacks the command line with seeded cases, and keeps what broke a law.

    python -m tests.fuzz --seed 20260101               # what CI runs, with the day's date
    python -m tests.fuzz --minutes 60 --seed 7         # as long as you like
    python -m tests.fuzz --only log --cases 5000       # one kind
    python -m tests.fuzz --case log-1-17               # one case again
    python -m tests.fuzz --replay fuzz_failures        # kept cases again

Exit codes: 0 every law held, 1 one was broken, 2 usage.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.campaign import Tally, run_cases, run_one, take
from tests.fuzz.case import Case, read_case
from tests.fuzz.generate import WEIGHTS, kind_of, make_case
from tests.fuzz.minimize import minimize

KEPT_PER_LAW = 2
"""So many failures of one law are minimised and kept."""


def main() -> int:
    """Runs what the arguments ask for; returns the exit code."""
    options = _read_arguments()
    cases = _choose_cases(options)
    end = time.monotonic() + options.minutes * 60 if options.minutes else None
    if end is not None:
        cases = take(cases, lambda: time.monotonic() > end)
    tally, started = Tally(), time.monotonic()
    for result in run_cases(cases, options.workers):
        tally.add(result)
        if options.case or options.replay or result.broken:
            state = "; ".join(result.broken) or "every law holds"
            print(f"{result.case.id}: {state[:400]} ({result.cpu_s:.2f} s)", flush=True)
        done = sum(tally.cases.values())
        if done % 500 == 0:
            print(f"{done} cases, {len(tally.failures)} failed, {time.monotonic() - started:.0f} s", flush=True)
    for line in tally.describe():
        print(line)
    count, broken = sum(tally.cases.values()), len(tally.failures)
    print(f"{count} cases, {broken} failed, in {time.monotonic() - started:.0f} s (seed {options.seed})")
    if broken and options.keep is not None:
        _keep(tally, options.keep)
    return 1 if broken else 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="how many (3000, or no limit with --minutes)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--only", choices=sorted(WEIGHTS), metavar="KIND", help=", ".join(sorted(WEIGHTS)))
    parser.add_argument("--case", metavar="ID", help="one case, as failures name it: KIND-SEED-NUMBER")
    parser.add_argument("--replay", type=Path, metavar="PATH", help="a kept case, or a directory of them")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="minimise failures and write them there")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _choose_cases(options: argparse.Namespace) -> Iterator[Case]:
    if options.replay:
        paths = sorted(options.replay.glob("*.json")) if options.replay.is_dir() else [options.replay]
        return (read_case(path.read_text()) for path in paths)
    if options.case:
        kind, seed, number = options.case.rsplit("-", 2)
        return iter([make_case(kind, int(seed), int(number))])
    count = options.cases if options.cases is not None else None if options.minutes else 3000
    numbers = itertools.count(options.first) if count is None else range(options.first, options.first + count)
    return (make_case(options.only or kind_of(options.seed, number), options.seed, number) for number in numbers)


def _keep(tally: Tally, directory: Path) -> None:
    """Minimises the first failures of every law and writes them as cases to replay."""
    directory.mkdir(parents=True, exist_ok=True)
    kept: dict[str, int] = {}
    for failure in tally.failures:
        kept[failure.law] = kept.get(failure.law, 0) + 1
        if kept[failure.law] > KEPT_PER_LAW:
            continue
        small = minimize(failure, run_one)
        path = directory / f"{failure.case.id}.json"
        path.write_text(small.to_json())
        print(f"kept {path} ({path.stat().st_size} bytes): {small.found}")


if __name__ == "__main__":
    sys.exit(main())
