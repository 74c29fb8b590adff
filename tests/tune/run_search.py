"""A search whose runs are simulated."""

from __future__ import annotations

from collections.abc import Callable

from three_walls.tuning.choose_trial import TrialSearch
from three_walls.tuning.trials import Choice, Space, TriedChoice

WORTH = 0.01
"""The share of a step that matters."""


def run_search(space: Space, run: Callable[[Choice], TriedChoice], most_runs: int) -> tuple[Choice, list[TriedChoice]]:
    """What is kept, and the runs."""
    trials: list[TriedChoice] = []
    while (choice := TrialSearch(space, trials, most_runs, WORTH).next()[0]) is not None:
        trials.append(run(choice))
    return TrialSearch(space, trials, most_runs, WORTH).kept, trials
