"""A model of the step that all runs so far are fitted to: how much faster is a configuration, measured or not?

The logarithm of a run's step is the sum of what its values change alone, of what pairs of them change together, of the
drift of the machine, and of noise. All are normally distributed around what is predicted of them, or around half of
what they usually change (less where two relieve the host), the drift as a random walk from run to run. How large they
are is not known: of many draws those count that make the measured steps likely. Settings that usually change a step by
more than others are taken to do so here, too, alone and in pairs, but each may change it by several times more or less.
So every run tells something about every value in it, a base next in time counts more than one long ago, and the chance
that a configuration is faster than the best so far follows, measured or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from three_walls.tuning.trials import BASE, Choice, Space, TriedChoice, Variant

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
"""Configurations, one a row."""

_PRIORS = {
    "alone": (0.06, 0.7),
    "together": (0.8, 0.5),
    "drift": (0.008, 0.7),
    "noise": (0.006, 0.7),
    "missed": (1.5, 0.8),
}
"""Typical size of each part, and the deviation of its logarithm: as shares of the step what a value changes alone, the
drift from run to run and the noise; what a pair changes as a share of what values change alone; and by how much more
predictions miss than their ranges say."""
_OF_ITS_OWN = 0.8
"""The deviation of the logarithm of what a setting changes, beside what it usually does."""
_DRAWS, _KEPT_DRAWS = 1000, 32
"""Of the sizes of the parts: so many are weighed, and so many stand for all where something is asked."""
_MOST_NUMBERS = 2_000_000
"""In an array of covariances."""
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
_OF_USUAL = 1.0
"""How far what edits usually do may miss, as a share of it; ``missed`` scales that as it scales predictions."""
_QUANTILE = 1.28
"""Of a normal distribution: four of five measured gains lie in their predicted range."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Draws (rows) of how large the parts are: of what each setting (columns) changes alone, and of the others."""

    alone: Array
    together: Array
    drift: Array
    noise: Array
    missed: Array

    def take(self, rows: slice | Numbers) -> Sizes:
        """Some of the draws."""
        return Sizes(*(getattr(self, each.name)[rows] for each in fields(self)))


class Relation(NamedTuple):
    """Of pairs of configurations (all axes but the last): what the covariance of their steps is made of."""

    known: Array
    """Of what is predicted; it has no last axis."""
    alike: Array
    """How much what their values of each setting (the last axis) change is correlated."""
    alone: Array
    """That times by how much more the values change than the nearest to the base's would."""


class StepModel:
    """The configurations' steps as the runs show them."""

    def __init__(self, space: Space, trials: Sequence[TriedChoice]) -> None:
        self.space = space
        runs = [(number, trial) for number, trial in enumerate(trials) if trial.step_s]
        self._choices = np.array([trial.choice for _, trial in runs], dtype=int)
        self._choices = self._choices.reshape(len(runs), len(space.settings))
        order = np.array([number for number, _ in runs], dtype=float)
        logs = np.log([trial.step_s or 0.0 for _, trial in runs])
        self._y = logs - logs[0] - self._expect(self._choices)
        self._related = self._relate(self._choices, self._choices)
        self._between = np.minimum.outer(order, order)
        self._errors = np.diag([trial.error**2 for _, trial in runs])
        sizes = self._draw_sizes()
        count = max(1, _MOST_NUMBERS // self._between.size)
        scores = np.concatenate(
            [self._score(sizes.take(slice(start, start + count))) for start in range(0, _DRAWS, count)]
        )
        shares = np.cumsum(np.exp(scores - scores.max()))
        evenly = (np.arange(_KEPT_DRAWS) + 0.5) / _KEPT_DRAWS * shares[-1]
        kept, times = np.unique(np.searchsorted(shares, evenly), return_counts=True)
        self._shares, self._sizes = times / _KEPT_DRAWS, sizes.take(kept)
        self._factors = self._decompose(self._sizes)
        half = np.linalg.solve(self._factors, self._y[:, None])
        self._weights = np.linalg.solve(self._factors.transpose(0, 2, 1), half)[..., 0]

    def _draw_sizes(self) -> Sizes:
        """What is known of the sizes before anything ran."""
        usual = np.array([setting.usual_ratio for setting in self.space.settings], dtype=float)
        normal = _draw_normal(len(_PRIORS) + len(usual))
        drawn = {name: size * np.exp(width * normal[:, at]) for at, (name, (size, width)) in enumerate(_PRIORS.items())}
        own = usual * np.exp(_OF_ITS_OWN * normal[:, len(_PRIORS) :])
        return Sizes(**drawn | {"alone": drawn["alone"][:, None] * own})

    def _score(self, sizes: Sizes) -> Array:
        """Of each draw the logarithm of the likelihood, up to a constant."""
        factors = self._decompose(sizes)
        misfit = (np.linalg.solve(factors, self._y[:, None])[..., 0] ** 2).sum(axis=-1)
        score: Array = -0.5 * misfit - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=-1)
        return score

    def _decompose(self, sizes: Sizes) -> Array:
        """The Cholesky factors of the covariance of the runs, one for each draw."""
        drift, noise = (each[:, None, None] ** 2 for each in (sizes.drift, sizes.noise))
        runs = drift * self._between + noise * np.eye(len(self._y)) + self._errors
        factors: Array = np.linalg.cholesky(_covary(self._related, sizes) + runs + _ANY_LEVEL)
        return factors

    @property
    def drift(self) -> float:
        """From run to run, as a share of the step."""
        return float(np.exp(self._shares @ np.log(self._sizes.drift)))

    def _relate(self, some: Numbers, others: Numbers) -> Relation:
        """By the values, and the pairs of them, that both have."""
        changed = (some[:, None, :] != BASE) & (others[None, :, :] != BASE)
        alike = self._alike[np.arange(len(self._alike)), some[:, None, :], others[None, :, :]] * changed
        told, untold = self._deviations
        missed = np.einsum("ijs,is,js->ij", alike, _look_up(told, some), _look_up(told, others))
        of_kinds = (np.outer(self._expect(some, kind), self._expect(others, kind)) for kind in self._kinds)
        alone = alike * _look_up(untold, some)[:, None, :] * _look_up(untold, others)[None, :, :]
        return Relation(missed + _OF_A_KIND**2 * sum(of_kinds), alike, alone)

    def _relate_own(self, rows: Numbers) -> Relation:
        """The diagonal of :meth:`_relate` of ``rows`` with themselves."""
        changed = (rows != BASE).astype(float)
        told, untold = self._deviations
        of_kinds = sum(self._expect(rows, kind) ** 2 for kind in self._kinds)
        known = (_look_up(told, rows) ** 2).sum(axis=1) + _OF_A_KIND**2 * of_kinds
        return Relation(known, changed, changed * _look_up(untold, rows) ** 2)

    @cached_property
    def _gains(self) -> Array:
        """Of every setting (rows) and value (columns) the logarithm of the predicted step with it, or the usual one."""
        return self._tabulate(lambda value: math.log1p(-value.gain.likely) if value.gain else value.usual)

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
        """How far what is expected of values may miss; and 1 of values without a prediction, of numbers more the
        further they lie from the base's: times what values change alone."""

        def miss(value: Variant) -> float:
            gain = value.gain
            usual = _OF_USUAL * abs(value.usual)
            return max((gain.high - gain.low) / 2 / _QUANTILE, _LEAST_DEVIATION) if gain else usual

        untold = self._tabulate(lambda value: 0.0 if value.gain else 1.0)
        for row, setting in zip(untold, self.space.settings, strict=True):
            row[1 : len(setting.order) + 1] *= np.sqrt(np.abs(setting.order))
        return self._tabulate(miss), untold

    def _tabulate(self, number: Callable[[Variant], float]) -> Array:
        most = max((len(setting.values) for setting in self.space.settings), default=0)
        table = np.zeros((len(self.space.settings), most + 1))
        for row, setting in enumerate(self.space.settings):
            table[row, 1 : len(setting.values) + 1] = [*map(number, setting.values)]
        return table

    @cached_property
    def _kinds(self) -> list[str]:
        predicted = (each.kind for each in self.space.settings if any(value.gain for value in each.values))
        return sorted(set(predicted))

    def _expect(self, choices: Numbers, kind: str | None = None) -> Array:
        """The logarithm of the predicted step over the base's; of the settings of one kind alone."""
        mine = [kind is None or setting.kind == kind for setting in self.space.settings]
        expected: Array = (_look_up(self._gains, choices) * mine).sum(axis=1)
        for pair, change in self.space.together.items() if kind is None else ():
            (one, number), (other, its) = pair
            expected += change * (choices[:, one] == number) * (choices[:, other] == its)
        return expected

    def gains_over(self, reference: Choice, choices: Sequence[Choice]) -> tuple[Array, Array]:
        """How much shorter the steps of ``choices`` are than that of ``reference``: logarithms and their deviations."""
        gains, variances = self._gains_by_draw(reference, choices)
        means = self._shares @ gains
        return means, np.sqrt(self._shares @ (variances + (gains - means) ** 2))

    def expected_gains(self, reference: Choice, choices: Sequence[Choice], least: Array) -> Array:
        """How much more than ``least`` (one for each) ``choices`` are expected to gain on ``reference``, where no loss
        counts: logarithms."""
        gains, variances = self._gains_by_draw(reference, choices)
        gains, spreads = gains - least, np.maximum(np.sqrt(variances), 1e-9)
        z = gains / spreads
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        faster = np.array([math.erfc(-each / math.sqrt(2)) / 2 for each in z.ravel()]).reshape(z.shape)
        expected: Array = self._shares @ (gains * faster + spreads * density)
        return expected

    def _gains_by_draw(self, reference: Choice, choices: Sequence[Choice]) -> tuple[Array, Array]:
        """The gains with each draw (rows), and their variances."""
        rows = np.array([reference, *choices], dtype=int).reshape(len(choices) + 1, len(self.space.settings))
        known = _covary(self._relate(rows, self._choices), self._sizes)
        means = self._expect(rows) + (known @ self._weights[..., None])[..., 0]
        reduced = np.linalg.solve(self._factors, known.transpose(0, 2, 1))
        variances = _covary(self._relate_own(rows), self._sizes) - (reduced**2).sum(axis=1)
        shared = _covary(self._relate(rows[:1], rows), self._sizes)[:, 0] - (reduced[:, :, :1] * reduced).sum(axis=1)
        spread = np.maximum(variances[:, :1] + variances - 2 * shared, 0.0)
        return (means[:, :1] - means)[:, 1:], spread[:, 1:]

    def clarity(self, reference: Choice, choice: Choice) -> float:
        """By how many deviations ``choice`` is faster than ``reference``."""
        (gain,), (spread,) = self.gains_over(reference, [choice])
        return float(gain / max(spread, 1e-9))


@cache
def _draw_normal(count: int) -> Array:
    """Draws (rows) of so many numbers (columns); always the same, so that a search is."""
    return np.random.default_rng(0).standard_normal((_DRAWS, count))


def _covary(relation: Relation, sizes: Sizes) -> Array:
    """Covariances of steps, for each of the draws (the first axis)."""
    together, missed = (each.reshape(-1, *(1,) * relation.known.ndim) ** 2 for each in (sizes.together, sizes.missed))
    alone = np.tensordot(sizes.alone**2, relation.alone, (1, -1))
    squares = np.tensordot(sizes.alone**2, relation.alike**2, (1, -1))
    pairs = (np.tensordot(sizes.alone, relation.alike, (1, -1)) ** 2 - squares) / 2  # of all pairs the products
    total: Array = missed * relation.known + alone + together * pairs
    return total


def _look_up(table: Array, choices: Numbers) -> Array:
    """What ``table`` has of every setting (column) of the configurations."""
    found: Array = table[np.arange(len(table)), choices]
    return found
