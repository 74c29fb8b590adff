"""A question about a run, ``what if ...``, and its answer: the step before and after changes, by replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from three_walls.advice.format.rule import Rule
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.fact import FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Predictor, Transformation


@dataclass(frozen=True, slots=True)
class Question:
    """Changes to try together."""

    settings: Mapping[str, ConfigData] = field(default_factory=dict)
    """Fact of a setting (``config.<key>``, ``env.<VARIABLE>``) to its new value."""
    scales: tuple[tuple[str, float], ...] = ()
    """What, and the factor on its time: ``host``, ``nccl``, a category or a group of categories."""
    dropped_kernels: tuple[str, ...] = ()
    """Regular expressions: operations with such names, and their launches, are left out."""
    network_bytes_per_s: float | None = None
    """Bandwidth per GPU and direction of the network."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a question means for the step."""

    transformations: tuple[Transformation, ...] = ()
    unknown: tuple[str, ...] = ()
    """Why something that was asked cannot be predicted, a sentence each."""
    notes: tuple[str, ...] = ()
    """What was assumed, or changes nothing, a sentence each."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The step before and after the changes of a question. Unprofiled time."""

    step: Prediction | None
    """The step as it is; None where it is not known."""
    step_source: str
    """Where its length comes from, in words."""
    after: Prediction | None
    """The step with all changes; None for the reason in ``because_unknown``."""
    because_unknown: str = ""
    budget: Mapping[str, int] = field(default_factory=dict)
    """Bucket to its time in the step as it is; empty where it is not known."""
    budget_after: Mapping[str, int] = field(default_factory=dict)
    """The same with all changes."""
    limits_after: Mapping[str, int] = field(default_factory=dict)
    """What the critical path of that step is made of (Predictor.limits_after)."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A run whose step can be replayed with changes."""

    rules: tuple[Rule, ...]
    facts: FactSheet
    predictor: Predictor
    answer: Callable[[Question, ReplayedRun], WhatIf]
    """Answers a question about the run."""

    def with_edits(
        self,
        settings: Mapping[str, ConfigData] = MappingProxyType({}),
        *,
        scales: Mapping[str, float] = MappingProxyType({}),
        dropped_kernels: Sequence[str] = (),
        network_bytes_per_s: float | None = None,
    ) -> WhatIf:
        """The step with changes, as ``three-walls whatif`` predicts it.

        - ``settings``: edits that some rule proposes, and with them what chooses how they work, by Megatron Core name;
          ``env.<VARIABLE>`` for variables.
        - ``scales``: factor on the time of ``host``, ``nccl``, a group of buckets, or a bucket.
        - ``dropped_kernels``: regular expressions, searched in kernel names.
        - ``network_bytes_per_s``: bandwidth of the network per GPU and direction.

        Raises UsageError for what no rule and no replay knows.
        """
        named = {name if name.startswith("env.") else f"config.{name}": value for name, value in settings.items()}
        question = Question(named, tuple(scales.items()), tuple(dropped_kernels), network_bytes_per_s)
        return self.answer(question, self)
