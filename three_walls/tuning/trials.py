"""What can be tried: settings with their values, the configurations that these make, and what runs of them gave."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from three_walls.lib.plain_data import ConfigData

OUT_OF_MEMORY = "out of memory"
"""Is in the reason of a run that was."""
HUNG_LATE = "it hung after"
"""Begins the reason of a run that had iterations, and then no more."""
BASE = 0
"""The number of the value that the job has anyway."""
_LEAST_ACTIVATIONS = 0.02
"""Of the peak: where less comes and goes in a step, what is allocated between steps tells nothing."""
Edit = tuple[int, int]
"""The place of a setting, and the number of one of its values."""
Clashes = frozenset[frozenset[Edit]]
"""Values, and pairs of values with the base's among them, that the launcher refuses."""
Choice = tuple[int, ...]
"""A configuration: of every setting the number of its value, :data:`BASE` or one of ``Setting.values`` from 1 on."""


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """A predicted gain as a share of the step: 0.1 makes it a tenth shorter."""

    low: float
    likely: float
    high: float


class Growth(NamedTuple):
    """A logarithm of what something becomes as a share of the base's, and its deviation."""

    likely: float
    miss: float

    @staticmethod
    def add(growths: Collection[Growth]) -> Growth:
        """One after the other."""
        return Growth(sum(each.likely for each in growths), math.hypot(*(each.miss for each in growths)))


@dataclass(frozen=True, slots=True)
class Variant:
    """A value of a setting, or the edits of an entry of the plan."""

    label: str
    words: tuple[str, ...] = ()
    """What is added to the command, one word each."""
    environment: Mapping[str, str] = field(default_factory=dict)
    gain: ExpectedGain | None = None
    """What is predicted of it on the base; None where nothing is."""
    config: Mapping[str, ConfigData] = field(default_factory=dict)
    """The same by Megatron Core name or the user's own, ``env.NAME`` for a variable."""
    needs: tuple[str, ...] = ()
    """Names of the settings that have to be changed with it."""
    activations: Growth | None = None
    """How it changes the base's; None where that is not known before it ran."""
    usual: float = 0.0
    """The change of the step's logarithm that is expected of it where nothing is predicted: by what such edits did."""


@dataclass(frozen=True, slots=True)
class Tunable:
    """Something that can be changed: a setting of a space, or an entry of the plan (its rule)."""

    name: str
    values: tuple[Variant, ...]
    kind: str = ""
    """Settings of a kind are predicted by the same model, so that they miss in the same direction."""
    usual_ratio: float = 1.0
    """By how many times more than most settings it usually changes a step."""
    order: tuple[int, ...] = ()
    """Of each value how many places it lies above the base's, or below as a negative number; empty where they have no
    order."""


@dataclass(frozen=True, slots=True)
class Space:
    """The settings to search."""

    settings: tuple[Tunable, ...]
    sweep: int
    """How many runs it takes to try every configuration once."""
    clashes: Clashes = frozenset()
    together: Mapping[frozenset[Edit], float] = field(default_factory=dict)
    """Of pairs of values: what both are expected to change beside what each does, a logarithm of the step."""

    @property
    def base(self) -> Choice:
        return (BASE,) * len(self.settings)

    def values_of(self, choice: Choice) -> tuple[Variant, ...]:
        """The values that differ from the base's."""
        return tuple(
            setting.values[number - 1] for setting, number in zip(self.settings, choice, strict=True) if number
        )

    def describe(self, choice: Choice) -> dict[str, str]:
        """The settings that differ from the base's, each with what it is changed to."""
        chosen = zip(self.settings, choice, strict=True)
        return {setting.name: setting.values[number - 1].label for setting, number in chosen if number}

    def allows(self, choice: Choice) -> bool:
        """Whether all that its values need is changed, too."""
        changed = {setting.name for setting, number in zip(self.settings, choice, strict=True) if number}
        return all(changed.issuperset(value.needs) for value in self.values_of(choice))


class MemoryUse(NamedTuple):
    """What a rank had allocated."""

    kept_bytes: int
    """Between two steps: weights, gradients, and what the optimizer keeps."""
    peak_bytes: int

    @property
    def shows_activations(self) -> bool:
        """Whether the two are far enough apart."""
        return self.peak_bytes - self.kept_bytes > _LEAST_ACTIVATIONS * self.peak_bytes


@dataclass(frozen=True, slots=True)
class TriedChoice:
    """A run of a configuration."""

    choice: Choice
    step_s: float | None
    """Its step after the warm-up; None where it failed."""
    error: float = 0.0
    """Standard error of that, as a share of it."""
    failure: str = ""
    """Why it failed."""
    memory: MemoryUse | None = None
    """Of the rank that allocated most; None where no rank says so."""
    limit_bytes: int | None = None
    """Of one that was out of memory: how much the device let PyTorch have."""
