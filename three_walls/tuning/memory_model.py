"""How likely a configuration has enough memory, by those that had and those that had not, and what they allocated.

What values need adds up, and some need less than the base's (recomputation), so that a value that is out of memory
alone may fit beside another. So it is a logistic regression on the values; before anything ran its weights are normally
distributed. Where runs print what they allocated, their activations say by how much they differ, also those of pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from three_walls.tuning.trials import Choice, MemoryUse, Space, Tunable

Array = npt.NDArray[np.float64]

_BASE = -8.0, 3.0
"""What the base needs above the limit, in units in which the logistic function turns, and its deviation."""
_BASE_OF_ACTIVATIONS = -30.0, 18.0
"""The same where activations are known, but no limit: a twentieth of what it leaves for them, within a factor of 6."""
_VALUE = 4.0
"""Deviation of what a value needs beside the base's: one in twelve is out of memory alone."""
_PAIR = 0.5
"""Deviation of what a pair needs beside its values, where activations are known."""
_UNITS = 10.0
"""Of a logarithm of activations: from a tenth below the limit on memory is short, since it is in pieces."""
_KNOWN, _PRINTED, _LIMIT = 1.0, 0.3, 2.0
"""Deviations of what a value needs of which that is known before it ran, of what a run printed, and of the limit."""
_LEAST_SHARE = 0.01
"""Of the peak or the limit: as small as activations, or the memory that is left for them, are taken to be."""
_STEPS, _LONGEST_STEP = 30, 3.0
"""Of Newton's method, which converges in ten."""


class MemoryModel:
    """What every value needs, by the runs so far."""

    def __init__(
        self,
        space: Space,
        enough: Sequence[Choice],
        out_of: Sequence[Choice],
        uses: Mapping[Choice, MemoryUse],
        limit_bytes: int | None,
    ) -> None:
        """``enough``: the configurations that ran, ``out_of``: those that were out of memory; ``uses``: what they
        allocated, where they say so."""
        is_printed = space.base in uses
        self._counts = [len(setting.values) for setting in space.settings]
        self._needs = [_list_needs(setting) for setting in space.settings]
        settings = np.repeat(range(len(self._counts)), self._counts)
        pairs = itertools.combinations(range(len(settings)), 2) if is_printed else ()
        self._pairs = np.array([pair for pair in pairs if settings[pair[0]] != settings[pair[1]]], dtype=int)
        self._pairs = self._pairs.reshape(-1, 2)
        base = _BASE_OF_ACTIVATIONS if is_printed else _BASE
        known = [_expect(setting) if is_printed else np.zeros(len(setting.values)) for setting in space.settings]
        mean = np.concatenate([[base[0]], *known, np.zeros(len(self._pairs))])
        values = np.where(mean[1 : 1 + len(settings)] != 0, _KNOWN, _VALUE)
        precision = np.diag(np.concatenate([[base[1]], values, np.full(len(self._pairs), _PAIR)]) ** -2)
        pull = np.zeros(len(mean))
        for row, need, deviation in self._compare(space.base, uses, limit_bytes) if is_printed else ():
            precision += np.outer(row, row) * deviation**-2
            pull += row * (need - row @ mean) * deviation**-2
        mean = mean + np.linalg.solve(precision, pull)
        rows = self._indicate([*enough, *out_of])
        failed = np.repeat((0.0, 1.0), (len(enough), len(out_of)))
        self._weights = mean
        for _ in range(_STEPS if out_of or is_printed else 0):
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

    def _compare(
        self, base: Choice, uses: Mapping[Choice, MemoryUse], limit_bytes: int | None
    ) -> Iterator[tuple[Array, float, float]]:
        """What runs print of their activations, as a share of what is left for them: rows, needs and deviations."""
        rows = self._indicate([base, *uses])
        needs = {choice: _UNITS * math.log(_share_of_activations(use, limit_bytes)) for choice, use in uses.items()}
        for row, need in zip(rows[1:], needs.values(), strict=True):
            yield row - rows[0], need - needs[base], _PRINTED
        if limit_bytes:
            yield rows[0], needs[base], _LIMIT

    def _indicate(self, choices: Sequence[Choice]) -> Array:
        """A row per configuration: 1 for the base, then for each value whether it has what that needs, then pairs."""
        places = np.array(choices, dtype=int).reshape(len(choices), len(self._counts))
        each = np.concatenate(
            [np.empty((len(choices), 0)), *(needs[places[:, setting]] for setting, needs in enumerate(self._needs))],
            axis=1,
        )
        pairs = each[:, self._pairs[:, 0]] * each[:, self._pairs[:, 1]]
        return np.concatenate([np.ones((len(choices), 1)), each, pairs], axis=1)


def _list_needs(setting: Tunable) -> Array:
    """Of the base's value and each other (rows) whose needs it has: its own, and those of numbers nearer the base's."""
    needs = np.eye(len(setting.values) + 1, len(setting.values), -1)
    for row, mine in zip(needs[1:], setting.order, strict=False):
        row[:] = [mine * other > 0 and abs(other) <= abs(mine) for other in setting.order]
    return needs


def _expect(setting: Tunable) -> Array:
    """What each value is known to need beside the numbers before it."""
    times = [value.activations for value in setting.values]
    if not all(times):
        return np.zeros(len(times))
    logs = _UNITS * np.log(np.array(times, dtype=float))
    known: Array = np.linalg.lstsq(_list_needs(setting)[1:], logs)[0]  # 1 and 1.0 are at one place
    return known


def _share_of_activations(use: MemoryUse, limit_bytes: int | None) -> float:
    """Activations as a share of what the limit leaves for them; in bytes where no limit is known."""
    activations = max(use.peak_bytes - use.kept_bytes, _LEAST_SHARE * use.peak_bytes)
    return activations / max(limit_bytes - use.kept_bytes, _LEAST_SHARE * limit_bytes) if limit_bytes else activations


def _logistic(of: Array) -> Array:
    value: Array = (1 + np.tanh(of / 2)) / 2
    return value
