"""A model of the step that all runs so far are fitted to: how much faster is a configuration, measured or not?

The logarithm of a run's step is the sum of what its values change alone, of what pairs of them change together, of the
drift of the machine, and of noise. All are normally distributed around what is predicted of them, the drift as a random
walk from run to run; how large they are is what makes the measured steps likeliest. So every run tells something about
every value in it, a base next in time counts more than one long ago, and the chance that a configuration is faster than
the best so far follows, measured or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from three_walls.tuning.trials import BASE, Choice, ExpectedGain, Space, TriedChoice

Array = npt.NDArray[np.float64]

_PRIORS = {"alone": (0.06, 0.7), "together": (0.3, 0.6), "drift": (0.008, 0.7), "noise": (0.006, 0.7)}
"""Typical size of each part, and the deviation of its logarithm: as shares of the step what a value changes alone, the
drift from run to run and the noise; what a pair changes as a share of what values change alone."""
_FACTORS = (0.35, 0.6, 1.0, 1.7, 2.8)
_ANY_LEVEL = 100.0
"""Variance of the logarithm of the first run's step, about which nothing is known."""
_OF_A_KIND = 0.5
"""How far predictions of a kind may miss together, as a share of the prediction: measured edits of a kind do."""
_LEAST_DEVIATION = 0.01
"""Of a predicted gain, as a share of the step."""
_QUANTILE = 1.28
"""Of a normal distribution: four of five measured gains lie in their predicted range."""


class StepModel:
    """The configurations' steps as the runs show them."""

    def __init__(self, space: Space, trials: Sequence[TriedChoice]) -> None:
        self.space = space
        self._runs = [(number, trial) for number, trial in enumerate(trials) if trial.step_s]
        self._choices = np.array([trial.choice for _, trial in self._runs], dtype=int)
        self._choices = self._choices.reshape(len(self._runs), len(space.settings))
        self._order = np.array([number for number, _ in self._runs], dtype=float)
        self._errors = np.array([trial.error for _, trial in self._runs])
        logs = np.log([trial.step_s or 0.0 for _, trial in self._runs])
        self._y = logs - logs[0] - self._expect(self._choices)
        self._sizes = self._fit()
        self._factor, self._weights = self._solve(self._sizes)

    def _fit(self) -> dict[str, float]:
        """The sizes of the parts with which the measured steps are likeliest, changed one at a time."""
        sizes = {name: size for name, (size, _) in _PRIORS.items()}
        for _ in range(2 if len(self._runs) > 3 else 0):
            for name in sizes:
                tried = [sizes | {name: _PRIORS[name][0] * factor} for factor in _FACTORS]
                sizes = max(tried, key=self._score)
        return sizes

    def _score(self, sizes: dict[str, float]) -> float:
        """Logarithm of the likelihood, up to a constant."""
        factor, weights = self._solve(sizes)
        prior = sum((math.log(sizes[name] / size) / width) ** 2 for name, (size, width) in _PRIORS.items())
        return float(-0.5 * self._y @ weights - np.log(np.diag(factor)).sum() - 0.5 * prior)

    def _solve(self, sizes: dict[str, float]) -> tuple[Array, Array]:
        drift = sizes["drift"] ** 2 * np.minimum.outer(self._order, self._order)
        noise = np.diag(sizes["noise"] ** 2 + self._errors**2)
        covariance = self._relate(self._choices, self._choices, sizes) + drift + noise + _ANY_LEVEL
        factor = np.linalg.cholesky(covariance)
        return factor, np.linalg.solve(factor.T, np.linalg.solve(factor, self._y))

    def _relate(self, some: npt.NDArray[np.int64], others: npt.NDArray[np.int64], sizes: dict[str, float]) -> Array:
        """Covariance of the steps of configurations: by the values, and the pairs of them, that both have."""
        same = (some[:, None, :] == others[None, :, :]) & (some[:, None, :] != BASE)
        count = same.sum(axis=2)
        variances = np.take_along_axis(self._variances(sizes["alone"]), some.T, axis=1).T
        alone = (same * variances[:, None, :]).sum(axis=2)
        kinds = sum(np.outer(self._expect(some, kind), self._expect(others, kind)) for kind in self._kinds)
        pairs = (sizes["together"] * sizes["alone"]) ** 2 * count * (count - 1) / 2
        covariance: Array = alone + pairs + _OF_A_KIND**2 * kinds
        return covariance

    def _own_variances(self, rows: npt.NDArray[np.int64]) -> Array:
        """The diagonal of :meth:`_relate` of ``rows`` with themselves."""
        count = (rows != BASE).sum(axis=1)
        alone = np.take_along_axis(self._variances(self._sizes["alone"]), rows.T, axis=1).sum(axis=0)
        kinds = sum(self._expect(rows, kind) ** 2 for kind in self._kinds)
        pairs = (self._sizes["together"] * self._sizes["alone"]) ** 2 * count * (count - 1) / 2
        variances: Array = alone + pairs + _OF_A_KIND**2 * kinds
        return variances

    @cached_property
    def _gains(self) -> Array:
        """Of every setting (rows) and value (columns) the logarithm of the predicted step with it."""
        return self._tabulate(lambda gain: math.log1p(-gain.likely) if gain else 0.0)

    def _variances(self, alone: float) -> Array:
        def variance(gain: ExpectedGain | None) -> float:
            return max((gain.high - gain.low) / 2 / _QUANTILE, _LEAST_DEVIATION) ** 2 if gain else alone**2

        return self._tabulate(variance)

    def _tabulate(self, number: Callable[[ExpectedGain | None], float]) -> Array:
        most = max((len(setting.values) for setting in self.space.settings), default=0)
        table = np.zeros((len(self.space.settings), most + 1))
        for row, setting in enumerate(self.space.settings):
            table[row, 1 : len(setting.values) + 1] = [number(value.gain) for value in setting.values]
        return table

    @cached_property
    def _kinds(self) -> list[str]:
        predicted = (each.kind for each in self.space.settings if any(value.gain for value in each.values))
        return sorted(set(predicted))

    def _expect(self, choices: npt.NDArray[np.int64], kind: str | None = None) -> Array:
        """The logarithm of the predicted step over the base's; of the settings of one kind alone."""
        mine = [kind is None or setting.kind == kind for setting in self.space.settings]
        expected: Array = (np.take_along_axis(self._gains, choices.T, axis=1).T * mine).sum(axis=1)
        return expected

    def gains_over(self, reference: Choice, choices: Sequence[Choice]) -> tuple[Array, Array]:
        """How much shorter the steps of ``choices`` are than that of ``reference``: logarithms and their deviations."""
        rows = np.array([reference, *choices], dtype=int).reshape(len(choices) + 1, len(self.space.settings))
        known = self._relate(rows, self._choices, self._sizes)
        means = self._expect(rows) + known @ self._weights
        reduced = np.linalg.solve(self._factor, known.T)
        variances = self._own_variances(rows) - (reduced**2).sum(axis=0)
        shared = self._relate(rows[:1], rows, self._sizes)[0] - reduced[:, 0] @ reduced
        spread = np.sqrt(np.maximum(variances[0] + variances - 2 * shared, 0.0))
        return (means[0] - means)[1:], spread[1:]

    def clarity(self, reference: Choice, choice: Choice) -> float:
        """By how many deviations ``choice`` is faster than ``reference``."""
        (gain,), (spread,) = self.gains_over(reference, [choice])
        return float(gain / max(spread, 1e-9))
