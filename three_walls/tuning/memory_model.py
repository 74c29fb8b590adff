"""How likely a configuration has enough memory, by those that had and those that had not, and what they allocated.

What values need adds up, and some need less than the base's (recomputation), so that a value that is out of memory
alone may fit beside another. So it is a probit regression on the values; before anything ran its weights are normally
distributed, around what values usually do to activations where that is known. Where runs print what they allocated,
their activations say by how much they differ, also those of pairs.
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
"""What the base needs above the limit, where a unit is a tenth of activations, and its deviation."""
_BASE_OF_ACTIVATIONS = -30.0, 18.0
"""The same where activations are printed, or it is known how they grow, but no limit is: a twentieth of what it leaves
for them, within a factor of 6."""
_VALUE = 4.0
"""Deviation of what a value needs beside the base's: one in twelve is out of memory alone."""
_PAIR = 0.5
"""Deviation of what a pair needs beside its values, where activations are known."""
_UNITS = 10.0
"""Of a logarithm of activations."""
_PRINTED, _LIMIT = 0.3, 2.0
"""Deviations of what a run printed, and of the limit."""
_LEAST_SHARE = 0.01
"""Of the peak or the limit: as small as activations, or the memory that is left for them, are taken to be."""
_WIDTH = 0.5
"""Deviation of what a configuration needs from what its values, and pairs of them, say."""
_SWEEPS = 3
"""Of expectation propagation: ten times as many change a chance by 0.002 at most."""
_FAR = -30.0
"""Deviations beyond which the density of a normal distribution falls like its tail."""


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
        known = [_expect(setting) for setting in space.settings]
        base = _BASE_OF_ACTIVATIONS if is_printed or any(means.any() for means, _ in known) else _BASE
        mean = np.concatenate([[base[0]], *(means for means, _ in known), np.zeros(len(self._pairs))])
        misses = (misses for _, misses in known)
        deviations: Array = np.concatenate([[base[1]], *misses, np.full(len(self._pairs), _PAIR)])
        precision = np.diag(deviations**-2)
        pull = np.zeros(len(mean))
        for row, need, deviation in self._compare(space.base, uses, limit_bytes) if is_printed else ():
            precision += np.outer(row, row) * deviation**-2
            pull += row * (need - row @ mean) * deviation**-2
        mean = mean + np.linalg.solve(precision, pull)
        self._mean, self._covariance = mean, np.linalg.inv(precision)
        rows = self._indicate([*enough, *out_of])
        signs = np.repeat((-1.0, 1.0), (len(enough), len(out_of)))
        self._learn(rows, signs if out_of or is_printed else signs[:0])

    def _learn(self, rows: Array, signs: Array) -> None:
        """What ``rows`` say of which the need is above (1) or below (-1) the limit: expectation propagation, in which
        each replaces what it said before by the moments of a normal distribution that is cut off."""
        told = np.zeros((len(signs), 2))  # the precision of a need and its product with the mean, as each row says them
        for row, sign, said in [*zip(rows, signs, told, strict=False)] * _SWEEPS:
            along = self._covariance @ row
            variance, mean = float(row @ along), float(row @ self._mean)
            precision = 1 / variance - said[0]
            if precision <= 0:
                continue
            mean, without = (mean / variance - said[1]) / precision, 1 / precision
            spread = math.sqrt(_WIDTH**2 + without)
            z = sign * mean / spread
            # The density at the limit over the part beyond it: both moments of what is cut off follow from it.
            ratio = math.exp(-(z**2) / 2) / math.sqrt(math.pi / 2) / math.erfc(-z / math.sqrt(2)) if z > _FAR else -z
            left = without - (without / spread) ** 2 * ratio * (z + ratio)
            now = np.array([1 / left - precision, (mean + sign * without * ratio / spread) / left - precision * mean])
            more = now - said
            said[:] = now
            gain = along / (1 + more[0] * variance)
            self._mean = self._mean + gain * (more[1] - more[0] * float(row @ self._mean))
            self._covariance = self._covariance - more[0] * np.outer(gain, along)

    def chances(self, choices: Sequence[Choice]) -> Array:
        """How likely each of ``choices`` has enough."""
        rows = self._indicate(choices)
        variances = np.einsum("ij,jk,ik->i", rows, self._covariance, rows)
        z = rows @ self._mean / np.sqrt(_WIDTH**2 + variances)
        return np.array([math.erfc(each / math.sqrt(2)) / 2 for each in z])

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


def _expect(setting: Tunable) -> tuple[Array, Array]:
    """What each value needs beside the numbers before it, and the deviation of that."""
    growths = [value.activations for value in setting.values]
    if not all(growths):
        return np.zeros(len(growths)), np.full(len(growths), _VALUE)
    likely, misses = _UNITS * np.array(growths, dtype=float).reshape(len(growths), 2).T
    known: Array = np.linalg.lstsq(_list_needs(setting)[1:], likely)[0]  # 1 and 1.0 are at one place
    return known, misses


def _share_of_activations(use: MemoryUse, limit_bytes: int | None) -> float:
    """Activations as a share of what the limit leaves for them; in bytes where no limit is known."""
    activations = max(use.peak_bytes - use.kept_bytes, _LEAST_SHARE * use.peak_bytes)
    return activations / max(limit_bytes - use.kept_bytes, _LEAST_SHARE * limit_bytes) if limit_bytes else activations
