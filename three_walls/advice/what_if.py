"""A question about a run, ``what if ...``, and its answer: the step before and after changes, by replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from three_walls.advice.finding import PlanNote
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Transformation


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
    effects: tuple[str, ...] = ()
    """Ids of those that settings have."""


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
    refused: tuple[PlanNote, ...] = ()
    """Why the release does not take the settings as asked, with the constraint's name."""
