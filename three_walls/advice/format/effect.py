"""What a change of settings does to a step, as a file of ``rules/effects`` states it: cases by the values before and
after.

A rule says when a setting is worth proposing; what it changes stands here once, for the plan and for ``whatif``.
``rules/README.md`` explains the format. ``advice/compare_settings.py`` reads what two configurations differ by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from three_walls.advice.format.conditions import Conditions, unit_of_setting
from three_walls.advice.format.replay_entries import ReplayEntry
from three_walls.advice.format.rule_fields import AnyFact, FileId, Prose
from three_walls.lib.fact import FactDefinition
from three_walls.lib.load_documents import Text, Texts, one_of

PHASES = ("work", "recompute", "overlap", "launches", "passes")
"""The order in which effects are applied, whatever the order of the settings: what is computed and sent, what is
computed again, what runs beside each other, what one call launches, how many passes there are."""

CHANGE_NUMBERS = (
    FactDefinition(
        "change.micro_batch_ratio", "ratio", "ratio of the micro-batch sizes", "The new micro-batch size over the old."
    ),
    FactDefinition(
        "change.left_over_samples_count",
        "count",
        "samples left over",
        "Samples of a step and rank that the new micro-batch size leaves over.",
    ),
    FactDefinition(
        "change.recomputed_layers_after_fraction",
        "fraction",
        "share of the layers recomputed in full then",
        "Of the layers of a model chunk, those that the new configuration recomputes in full.",
    ),
    FactDefinition(
        "change.recomputed_layers_left_fraction",
        "fraction",
        "share of the recomputed layers that still is",
        "Of the layers that the run recomputes in full, those that the new configuration does, too; at most 1.",
    ),
    FactDefinition(
        "change.recomputed_layers_added_fraction",
        "fraction",
        "share of the layers recomputed in full in addition",
        "Of the layers of a model chunk, those that the new configuration recomputes in full and the run does not.",
    ),
)
"""Numbers that follow from the two configurations; effects may compare and use them like facts."""


def _check_settings(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not unit_of_setting(name):
            raise ValueError(f"expected config.<key> or env.<VARIABLE>, found {name}")
    return names


SettingNames = Annotated[tuple[AnyFact, ...], AfterValidator(_check_settings)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCase:
    """What happens where ``from`` holds for the run as it is and ``to`` for it with the new settings.

    One of ``changes``, ``nothing`` (why nothing changes) and ``unknown`` (why nobody can tell what changes).
    """

    from_: Annotated[Conditions, Field(alias="from")] = ()
    to: Conditions = ()
    changes: tuple[ReplayEntry, ...] = ()
    nothing: Prose = ""
    unknown: Prose = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.changes, self.nothing, self.unknown))) != 1:
            raise ValueError("a case has one of changes, nothing and unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One subject: the first of its cases counts whose conditions hold, or may hold where the case has changes."""

    id: FileId
    phase: Annotated[Text, one_of(PHASES)]
    settings: SettingNames
    """A change of any of these is what this effect is about."""
    elements: Texts = ()
    """Of those settings that are lists: the elements that it is about. Without any, all."""
    together_with: SettingNames = ()
    """Settings that have no effect of their own where they change together with ``settings``."""
    cases: tuple[EffectCase, ...]
    otherwise: Prose
    """Why no other change of the settings is predicted."""

    def __post_init__(self) -> None:
        if not self.settings or not self.cases:
            raise ValueError("an effect has settings and cases: found none")

    @property
    def order(self) -> tuple[int, str]:
        """Its place among all effects."""
        return PHASES.index(self.phase), self.id
