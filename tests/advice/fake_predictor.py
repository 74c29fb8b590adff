"""A predictor that knows a step for each set of transformations, for tests of plans and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.advice.builders import MS, with_replay
from three_walls.advice.format.rule import Rule
from three_walls.facts.fact_rows import Prediction
from three_walls.replay.transformation import Action, Selection, Transformation


def change(name: str) -> Transformation:
    """A transformation that is known by its ``name``."""
    return Transformation(Action.SCALE, Selection(kernels=name), reason=f"{name} changes")


def replayed(rule: Rule, *names: str) -> Rule:
    """``rule`` with transformations of these names, by default one of its own."""
    return with_replay(rule, *(change(name) for name in names or (rule.id,)))


def name_of(transformation: Transformation) -> str:
    return transformation.select.kernels or transformation.action.value


@dataclass
class FakePredictor:
    """Steps in ms by names of transformations; each may be a triple of low, likely and high."""

    step_of: Callable[[frozenset[str]], float | tuple[float, float, float]]
    missing_reason: str = ""
    error_fraction: float = 0.0
    changes_nothing: Mapping[str, str] = field(default_factory=dict)
    """Name of a transformation -> why it changes nothing."""
    asked: list[tuple[str, ...]] = field(default_factory=list)
    asked_likely: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def step_ns(self) -> Prediction:
        return self._predict(())

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        names = tuple(map(name_of, transformations))
        self.asked.append(names)
        return self._predict(names)

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:
        names = tuple(map(name_of, transformations))
        self.asked_likely.append(names)
        return self._predict(names).likely_ns

    def _predict(self, names: Sequence[str]) -> Prediction:
        found = self.step_of(frozenset(names))
        low, likely, high = found if isinstance(found, tuple) else (found, found, found)
        return Prediction(round(low * MS), round(likely * MS), round(high * MS))

    def explain(self, transformation: Transformation) -> str:
        return self.changes_nothing.get(name_of(transformation), "")

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        return {"gemm": self.predict(transformations).likely_ns}

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        return {"compute": self.predict(transformations).likely_ns}


def saving(step_ms: float = 800, **saved_ms: float) -> FakePredictor:
    """Each named transformation saves its own time, whatever else changes."""
    return FakePredictor(lambda names: step_ms - sum(saved_ms.get(name, 0) for name in names))
