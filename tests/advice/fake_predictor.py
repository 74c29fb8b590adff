"""A predictor that knows a step for each set of transformations, for tests of plans and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.advice.builders import MS, case, effect, run
from three_walls.advice.answer_what_if import FactsAfter, ReplayedRun, Validate
from three_walls.advice.finding import Finding, PlanStep
from three_walls.advice.format.effect import Effect
from three_walls.advice.format.rule import Rule
from three_walls.advice.plan.make_plan import make_plan
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.fact import FactSheet
from three_walls.replay.transformation import Action, NoPredictor, Predictor, Selection, Transformation


def change(name: str) -> Transformation:
    """A transformation that is known by its ``name``."""
    return Transformation(Action.SCALE, Selection(kernels=name), reason=f"{name} changes")


def turns_on(name: str, *changes: str) -> Effect:
    """The effect of ``config.<name>``: turned on, it makes the changes of these names, by default one of its own."""
    return effect(name, case(f"config.{name} is True", *map(change, changes or (name,))))


def choose(key: str, **change_of: str) -> Effect:
    """The effect of ``config.<key>``: each of its values, which are words, makes the change of a name."""
    return effect(key, *(case(f"config.{key} == '{value}'", change(name)) for value, name in change_of.items()))


def name_of(transformation: Transformation) -> str:
    return transformation.select.kernels or transformation.action.value


@dataclass
class FakePredictor:
    """Steps in ms by names of transformations; each may be a triple of low, likely and high."""

    step_of: Callable[[frozenset[str]], float | tuple[float, float, float]]
    missing_reason: str = ""
    error_fraction: float = 0.0
    absent_fraction: float = 0.0
    paused_ms: float = 0.0
    """What pauses take of each step, unless a rank is healed."""
    changes_nothing: Mapping[str, str] = field(default_factory=dict)
    """Name of a transformation -> why it changes nothing."""
    bound_by: Callable[[frozenset[str]], str] = lambda _: "compute"
    """What the critical path is made of."""
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

    def paused_after(self, transformations: Sequence[Transformation]) -> int:
        return 0 if any(each.action is Action.HEAL for each in transformations) else round(self.paused_ms * MS)

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        names = tuple(map(name_of, transformations))
        return {self.bound_by(frozenset(names)): self._predict(names).likely_ns}


def saving(step_ms: float = 800, **saved_ms: float) -> FakePredictor:
    """Each named transformation saves its own time, whatever else changes."""
    return FakePredictor(lambda names: step_ms - sum(saved_ms.get(name, 0) for name in names))


def replayed_run(
    rules: Sequence[Rule],
    predictor: Predictor,
    facts: FactSheet | None = None,
    *effects: Effect,
    validate: Validate = lambda _: (),
    facts_after: FactsAfter = lambda _: {},
) -> ReplayedRun:
    """A run that can be replayed. Settings without one of the ``effects`` make the change of their own name, on."""
    stated = {name for each in effects for name in each.settings}
    own = {edit.key for rule in rules for edit in rule.edits if edit.kind == "config"}
    others = [turns_on(key) for key in sorted(own) if f"config.{key}" not in stated]
    ordered = tuple(sorted((*effects, *others), key=lambda each: each.order))
    return ReplayedRun(tuple(rules), ordered, run() if facts is None else facts, predictor, validate, facts_after)


def plan_of(
    rules: Sequence[Rule],
    predictor: Predictor,
    facts: FactSheet | None = None,
    *effects: Effect,
    allowed: Sequence[str] = (),
    fixes_rank_first: bool = True,
    validate: Validate = lambda _: (),
    facts_after: FactsAfter = lambda _: {},
) -> tuple[dict[str, Finding], tuple[PlanStep, ...]]:
    """The findings of ``rules`` by id, and the plan of the :func:`replayed run <replayed_run>`."""
    made = replayed_run(rules, predictor, facts, *effects, validate=validate, facts_after=facts_after)
    findings, steps = make_plan(made, allowed, fixes_rank_first=fixes_rank_first)
    return {finding.rule: finding for finding in findings}, steps


def names(steps: Sequence[PlanStep]) -> list[str]:
    """The rules of the entries, in order."""
    return [step.rule for step in steps]


WITHOUT_REPLAYS = NoPredictor("no launches were recorded")
