"""How likely a configuration has enough memory, by those that had and those that had not.

What values need adds up, and some need less than the base's (recomputation), so that a value that is out of memory
alone may fit beside another. So it is a logistic regression on the values; before anything ran its weights are normally
distributed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from three_walls.tuning.trials import Choice, Space, Tunable

Array = npt.NDArray[np.float64]

_BASE = -8.0, 3.0
"""What the base needs above the limit, in units in which the logistic function turns, and its deviation."""
_VALUE = 4.0
"""Deviation of what a value needs beside the base's: one in twelve is out of memory alone."""
_STEPS, _LONGEST_STEP = 30, 3.0
"""Of Newton's method, which converges in ten."""


class MemoryModel:
    """What every value needs, by the runs so far."""

    def __init__(self, space: Space, enough: Sequence[Choice], out_of: Sequence[Choice]) -> None:
        """``enough``: the configurations that ran, ``out_of``: those that were out of memory."""
        self._counts = [len(setting.values) for setting in space.settings]
        self._needs = [_list_needs(setting) for setting in space.settings]
        rows = self._indicate([*enough, *out_of])
        failed = np.repeat((0.0, 1.0), (len(enough), len(out_of)))
        mean = np.array([_BASE[0], *(0.0 for _ in range(sum(self._counts)))])
        precision = np.diag([_BASE[1] ** -2, *(_VALUE**-2 for _ in range(sum(self._counts)))])
        self._weights = mean
        for _ in range(_STEPS if out_of else 0):
            likely = _logistic(rows @ self._weights)
            slope = rows.T @ (failed - likely) - precision @ (self._weights - mean)
            step = np.linalg.solve(precision + (rows.T * (likely * (1 - likely))) @ rows, slope)
            self._weights = self._weights + step * min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-9))
        likely = _logistic(rows @ self._weights)
        self._covariance = np.linalg.inv(precision + (rows.T * (likely * (1 - likely))) @ rows)

    def chances(self, choices: Sequence[Choice]) -> Array:
        """How likely each of ``choices`` has enough."""
        rows = self._indicate(choices)
        variances = np.einsum("ij,jk,ik->i", rows, self._covariance, rows)
        chances: Array = _logistic(-(rows @ self._weights) / np.sqrt(1 + np.pi / 8 * variances))
        return chances

    def _indicate(self, choices: Sequence[Choice]) -> Array:
        """A row per configuration: 1 for the base, then for each value whether it has what that needs."""
        places = np.array(choices, dtype=int).reshape(len(choices), len(self._counts))
        each = [needs[places[:, setting]] for setting, needs in enumerate(self._needs)]
        return np.concatenate([np.ones((len(choices), 1)), *each], axis=1)


def _list_needs(setting: Tunable) -> Array:
    """Of the base's value and each other (rows) whose needs it has: its own, and those of numbers nearer the base's."""
    needs = np.eye(len(setting.values) + 1, len(setting.values), -1)
    for row, mine in zip(needs[1:], setting.order, strict=False):
        row[:] = [mine * other > 0 and abs(other) <= abs(mine) for other in setting.order]
    return needs


def _logistic(of: Array) -> Array:
    value: Array = (1 + np.tanh(of / 2)) / 2
    return value
