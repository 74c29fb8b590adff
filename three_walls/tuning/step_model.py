"""A model of the step that all runs so far are fitted to: how much faster is a configuration, measured or not?

The logarithm of a run's step is the sum of what its values change alone, of what pairs of them change together, of the
drift of the machine, and of noise. All are normally distributed around what is predicted of them, the drift as a random
walk from run to run; how large they are is what makes the measured steps likeliest. Settings that usually change a step
by more than others are taken to do so here, too, alone and in pairs. So every run tells something about every value in
it, a base next in time counts more than one long ago, and the chance that a configuration is faster than the best so
far follows, measured or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from three_walls.tables.usual_changes import usual_changes
from three_walls.tuning.trials import BASE, Choice, ExpectedGain, Space, TriedChoice

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
"""Configurations, one a row."""

_PRIORS = {
    "alone": (0.06, 0.7),
    "together": (0.3, 0.6),
    "drift": (0.008, 0.7),
    "noise": (0.006, 0.7),
    "missed": (1.5, 0.8),
}
"""Typical size of each part, and the deviation of its logarithm: as shares of the step what a value changes alone, the
drift from run to run and the noise; what a pair changes as a share of what values change alone; and by how much more
predictions miss than their ranges say."""
_FACTORS = (0.35, 0.6, 1.0, 1.7, 2.8)
_ANY_LEVEL = 100.0
"""Variance of the logarithm of the first run's step, about which nothing is known."""
_OF_A_SETTING = 0.3
"""Correlation of what two values of a setting change."""
_OF_NEAR_NUMBERS = 0.85
"""The same of two numbers next to each other, far from the base's: a number changes about what the one before does."""
_OF_A_KIND = 0.5
"""How far predictions of a kind may miss together, as a share of the prediction: measured edits of a kind do."""
_LEAST_DEVIATION = 0.01
"""Of a predicted gain, as a share of the step."""
_QUANTILE = 1.28
"""Of a normal distribution: four of five measured gains lie in their predicted range."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Covariances: of what is predicted, and of what values change alone and together, of which sizes are factors."""

    known: Array
    alone: Array
    together: Array

    def scale(self, sizes: Mapping[str, float]) -> Array:
        """The sum of the parts."""
        covariance: Array = self.known * sizes["missed"] ** 2 + sizes["alone"] ** 2 * (
            self.alone + sizes["together"] ** 2 * self.together
        )
        return covariance


class StepModel:
    """The configurations' steps as the runs show them."""

    def __init__(self, space: Space, trials: Sequence[TriedChoice], least_together: float = 0.0) -> None:
        """``least_together``: what a pair changes at least, as a share of what values change alone. Unless it is 0, a
        value that no run has changes at least what it usually does, too: what others changed says little of it."""
        self.space = space
        self._runs = [(number, trial) for number, trial in enumerate(trials) if trial.step_s]
        self._choices = np.array([trial.choice for _, trial in self._runs], dtype=int)
        self._choices = self._choices.reshape(len(self._runs), len(space.settings))
        self._order = np.array([number for number, _ in self._runs], dtype=float)
        self._errors = np.array([trial.error for _, trial in self._runs])
        logs = np.log([trial.step_s or 0.0 for _, trial in self._runs])
        self._y = logs - logs[0] - self._expect(self._choices)
        self._parts = self._relate(self._choices, self._choices)
        self._between = np.minimum.outer(self._order, self._order)
        self._sizes = self._fit()
        self._sizes["together"] = max(least_together, self._sizes["together"])
        if least_together:
            self._doubt_unseen()
        self._factor = self._decompose(self._sizes)
        self._weights = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, self._y))

    def _doubt_unseen(self) -> None:
        """Raises the deviations of values that no run has; the fit is over by then."""
        _, untold = self._deviations
        is_unseen = np.ones(untold.shape, dtype=bool)
        is_unseen[np.arange(len(untold)), self._choices] = False
        untold[is_unseen] *= max(1.0, usual_changes().other / self._sizes["alone"])

    def _fit(self) -> dict[str, float]:
        """The sizes of the parts with which the measured steps are likeliest, changed one at a time."""
        sizes = {name: size for name, (size, _) in _PRIORS.items()}
        for _ in range(2 if len(self._runs) > 1 else 0):
            for name in sizes:
                tried = [sizes | {name: _PRIORS[name][0] * factor} for factor in _FACTORS]
                sizes = max(tried, key=self._score)
        return sizes

    def _score(self, sizes: dict[str, float]) -> float:
        """Logarithm of the likelihood, up to a constant."""
        factor = self._decompose(sizes)
        prior = sum((math.log(sizes[name] / size) / width) ** 2 for name, (size, width) in _PRIORS.items())
        misfit = float((np.linalg.solve(factor, self._y) ** 2).sum())
        return -0.5 * misfit - float(np.log(np.diag(factor)).sum()) - 0.5 * prior

    def _decompose(self, sizes: dict[str, float]) -> Array:
        """The Cholesky factor of the covariance of the runs."""
        drift = sizes["drift"] ** 2 * self._between
        noise = np.diag(sizes["noise"] ** 2 + self._errors**2)
        factor: Array = np.linalg.cholesky(self._parts.scale(sizes) + drift + noise + _ANY_LEVEL)
        return factor

    def _relate(self, some: Numbers, others: Numbers) -> Parts:
        """Covariance of the steps of configurations: by the values, and the pairs of them, that both have."""
        changed = (some[:, None, :] != BASE) & (others[None, :, :] != BASE)
        alike = self._alike[np.arange(len(self._alike)), some[:, None, :], others[None, :, :]] * changed
        told, untold = self._deviations
        return Parts(
            known=_sum_products(alike, _look_up(told, some), _look_up(told, others))
            + sum(
                _OF_A_KIND**2 * np.outer(self._expect(some, kind), self._expect(others, kind)) for kind in self._kinds
            ),
            alone=_sum_products(alike, _look_up(untold, some), _look_up(untold, others)),
            together=_sum_pairs(alike * self._usual),
        )

    def _own_variances(self, rows: Numbers) -> Array:
        """The diagonal of :meth:`_relate` of ``rows`` with themselves."""
        changed = rows != BASE
        told, untold = self._deviations
        kinds = sum(self._expect(rows, kind) ** 2 for kind in self._kinds)
        known = (_look_up(told, rows) ** 2).sum(axis=1) + _OF_A_KIND**2 * kinds
        alone = (_look_up(untold, rows) ** 2).sum(axis=1)
        return Parts(known, alone, _sum_pairs(changed * self._usual)).scale(self._sizes)

    @cached_property
    def _usual(self) -> Array:
        """By how many times more than most each setting usually changes a step."""
        return np.array([setting.usual_ratio for setting in self.space.settings], dtype=float)

    @cached_property
    def _gains(self) -> Array:
        """Of every setting (rows) and value (columns) the logarithm of the predicted step with it."""
        return self._tabulate(lambda gain: math.log1p(-gain.likely) if gain else 0.0)

    @cached_property
    def _alike(self) -> Array:
        """Of every setting the correlation of what its values (rows and columns) change: of numbers as in a random walk
        that begins at the base's, up and down."""
        table = np.full((*self._gains.shape, self._gains.shape[1]), _OF_A_SETTING)
        for mine, setting in zip(table, self.space.settings, strict=True):
            places, end = np.array(setting.order, dtype=float), len(setting.order) + 1
            far = np.maximum(1, np.maximum.outer(abs(places), abs(places)))  # 1 and 1.0 are at one place
            near = np.minimum.outer(abs(places), abs(places))
            same_side = np.outer(places, places) > 0
            mine[1:end, 1:end] = _OF_NEAR_NUMBERS * np.sqrt(near / far) * same_side
            np.fill_diagonal(mine, 1.0)
        return table

    @cached_property
    def _deviations(self) -> tuple[Array, Array]:
        """How far the predictions of values may miss; and 1 of values without one, of numbers more the further they lie
        from the base's: times what values change alone."""

        def miss(gain: ExpectedGain | None) -> float:
            return max((gain.high - gain.low) / 2 / _QUANTILE, _LEAST_DEVIATION) if gain else 0.0

        untold = self._tabulate(lambda gain: 0.0 if gain else 1.0) * self._usual[:, None]
        for row, setting in zip(untold, self.space.settings, strict=True):
            row[1 : len(setting.order) + 1] *= np.sqrt(np.abs(setting.order))
        return self._tabulate(miss), untold

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

    def _expect(self, choices: Numbers, kind: str | None = None) -> Array:
        """The logarithm of the predicted step over the base's; of the settings of one kind alone."""
        mine = [kind is None or setting.kind == kind for setting in self.space.settings]
        expected: Array = (_look_up(self._gains, choices) * mine).sum(axis=1)
        return expected

    def gains_over(self, reference: Choice, choices: Sequence[Choice]) -> tuple[Array, Array]:
        """How much shorter the steps of ``choices`` are than that of ``reference``: logarithms and their deviations."""
        rows = np.array([reference, *choices], dtype=int).reshape(len(choices) + 1, len(self.space.settings))
        known = self._relate(rows, self._choices).scale(self._sizes)
        means = self._expect(rows) + known @ self._weights
        reduced = np.linalg.solve(self._factor, known.T)
        variances = self._own_variances(rows) - (reduced**2).sum(axis=0)
        shared = self._relate(rows[:1], rows).scale(self._sizes)[0] - reduced[:, 0] @ reduced
        spread = np.sqrt(np.maximum(variances[0] + variances - 2 * shared, 0.0))
        return (means[0] - means)[1:], spread[1:]

    def clarity(self, reference: Choice, choice: Choice) -> float:
        """By how many deviations ``choice`` is faster than ``reference``."""
        (gain,), (spread,) = self.gains_over(reference, [choice])
        return float(gain / max(spread, 1e-9))


def _look_up(table: Array, choices: Numbers) -> Array:
    """What ``table`` has of every setting (column) of the configurations."""
    found: Array = table[np.arange(len(table)), choices]
    return found


def _sum_pairs(each: Array) -> Array:
    """Over all pairs of settings (the last axis) the sum of the products."""
    total: Array = (each.sum(axis=-1) ** 2 - (each**2).sum(axis=-1)) / 2
    return total


def _sum_products(alike: Array, some: Array, others: Array) -> Array:
    """Over the settings the sum of the products."""
    total: Array = np.einsum("ijs,is,js->ij", alike, some, others)
    return total
