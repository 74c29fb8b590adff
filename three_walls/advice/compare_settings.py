"""What a configuration changes in the step of a run: its difference from the run's own, as transformations.

Every prediction of an edit, in the plan and in ``whatif``, is such a difference. It depends on the two configurations
alone: neither the order of the settings, nor the rule that proposes them, nor repetition changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from three_walls.advice.edits import as_text, is_set, list_elements
from three_walls.advice.format.conditions import evaluate_all
from three_walls.advice.format.effect import CHANGE_NUMBERS, Effect, EffectCase
from three_walls.advice.format.replay_entries import ReplayEntry, SelectionEntry
from three_walls.advice.wording import list_labels
from three_walls.lib.expressions import Truth
from three_walls.lib.fact import FactSheet, FactValue
from three_walls.lib.load_documents import NOT_STATED
from three_walls.lib.plain_data import ConfigData, ConfigScalar
from three_walls.megatron.parallel_layout import UNEVEN_STAGES
from three_walls.replay.transformation import Action, Transformation
from three_walls.tables.bridge_releases import precision_settings
from three_walls.tables.config_values import show

Settings = Mapping[str, ConfigData]
"""Fact of a setting (``config.<key>``, ``env.<VARIABLE>``) to its value."""

_GRANULARITY, _MODULES = "config.recompute_granularity", "config.recompute_modules"
_PRECISION, _SCOPES = "config.mixed_precision", "config.cuda_graph_scope"
_NEWER_SCOPES = "config.cuda_graph_modules"
"""The newer name of the scopes; overrides empty the other one."""
_MODULES_BY_DEFAULT = ("core_attn",)
_NUMBERS = {number.name: number for number in CHANGE_NUMBERS}


@dataclass(frozen=True, slots=True)
class SettingsDifference:
    """What new settings change in a step."""

    transformations: tuple[Transformation, ...] = ()
    """In the order in which they are applied."""
    unknown: tuple[str, ...] = ()
    """Why something that changes cannot be predicted, a sentence each. Then the transformations are not all."""
    notes: tuple[str, ...] = ()
    """What changes nothing, a sentence each."""
    effects: tuple[str, ...] = ()
    """Ids of those that give the transformations."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An effect that is about what changes, and its case that counts."""

    effect: Effect
    own: tuple[str, ...]
    """Those of its settings that change."""
    shown: str
    case: EffectCase | None

    @property
    def doubt(self) -> str:
        """Why it is not known what happens; empty where it is."""
        return self.effect.otherwise if self.case is None else self.case.unknown

    @property
    def changes(self) -> tuple[ReplayEntry, ...]:
        return self.case.changes if self.case else ()


def compare_settings(
    effects: Sequence[Effect],
    facts: FactSheet,
    settings: Settings,
    explain: Callable[[Transformation], str] = lambda _: "",
) -> SettingsDifference:
    """What the run of ``facts`` changes if it gets ``settings``. ``explain``: why a transformation changes nothing."""
    now = facts if facts.get(_MODULES).is_missing else _with_default_modules(facts)
    after, changed = apply_settings(now, settings)
    numbers = _count_changes(now, after)
    now, after = (_with_numbers(sheet, numbers) for sheet in (now, after))
    parts = tuple(_find_parts(effects, now, after, changed))
    transformations: list[Transformation] = []
    unknown: list[tuple[str, str]] = []
    for part in parts:
        found, reason = fill_known(part.changes, now, explain) if part.changes else ((), "")
        transformations += found
        unknown += [(part.shown, reason)] if reason else []
    companions = {name for part in parts if part.changes for name in part.effect.together_with}
    unknown += [(part.shown, part.doubt) for part in parts if part.doubt and not companions.issuperset(part.own)]
    unknown += _list_uncovered(parts, effects, now, after, [name for name in changed if name not in companions])
    moving = {name for part in parts if part.changes for name in part.own}
    quiet = (part for part in parts if part.case and part.case.nothing and moving.isdisjoint(part.own))
    notes = dict.fromkeys(f"{part.shown} changes nothing: {part.case.nothing}." for part in quiet if part.case)
    doubts = (f"what {shown} changes is not known, because {reason}" for shown, reason in dict.fromkeys(unknown))
    changing = tuple(part.effect.id for part in parts if part.changes)
    return SettingsDifference(tuple(transformations), tuple(doubts), tuple(notes), changing)


def _find_parts(effects: Iterable[Effect], now: FactSheet, after: FactSheet, changed: Iterable[str]) -> Iterator[_Part]:
    for effect in effects:
        own = tuple(name for name in effect.settings if name in changed)
        if own and _is_about(effect, now, after, changed):
            yield _Part(effect, own, ", ".join(_show(name, after) for name in own), _find_case(effect, now, after))


def fill_known(
    entries: Sequence[ReplayEntry], facts: FactSheet, explain: Callable[[Transformation], str]
) -> tuple[tuple[Transformation, ...], str]:
    """The transformations of ``entries``, or none and why they are not known or change nothing."""
    found, missing = fill_entries(entries, facts)
    if missing:
        return (), f"it depends on what is not known: {list_labels(missing, facts)}"
    reasons = [explain(transformation) for transformation in found]
    if all(reasons):  # also where none is left
        return (), reasons[0] if reasons else "none of its transformations applies to this run"
    return found, ""


def _list_uncovered(
    parts: Sequence[_Part], effects: Sequence[Effect], now: FactSheet, after: FactSheet, changed: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """What changes, and why it is not known, of settings and elements of lists that no effect is about."""
    doubtful = {name for part in parts if part.doubt for name in part.effect.together_with}
    for name in changed:
        about = [part.effect for part in parts if name in part.own]
        left = _differing_elements(now, after, name).difference(*(effect.elements for effect in about))
        if not about and name not in doubtful:
            yield _show(name, after), _why_not_known(name, effects)
        elif about and left and all(effect.elements for effect in about):
            yield _show(name, after), f"no measurement shows what {', '.join(sorted(map(str, left)))} changes in a step"


def apply_settings(facts: FactSheet, settings: Settings) -> tuple[FactSheet, tuple[str, ...]]:
    """``facts`` with ``settings`` and what follows from them; and which of them differ from the run's, by name."""
    values = dict(settings)
    if (modules := values.pop(_NEWER_SCOPES, NOT_STATED)) is not NOT_STATED and not values.get(_SCOPES):
        values[_SCOPES] = modules
    recipe = values.get(_PRECISION)
    if isinstance(recipe, str):
        formats = precision_settings(recipe.replace("-", "_"))
        values = {f"config.{key}": value for key, value in formats.items()} | values
        if formats:  # they stand for the recipe
            del values[_PRECISION]
    values = {name: as_text(name, value) for name, value in values.items()}
    wanted = _with_default_modules(facts.with_values(values))
    changed = tuple(name for name in sorted(values) if not is_set(name, wanted.get(name).value, facts))
    return _with_default_modules(facts.with_values({name: wanted.get(name).value for name in changed})), changed


def _with_default_modules(facts: FactSheet) -> FactSheet:
    """``facts`` with what Megatron recomputes selectively where no list is given."""
    if facts.get(_GRANULARITY).value == "selective" and facts.get(_MODULES).value is None:
        return facts.with_values({_MODULES: _MODULES_BY_DEFAULT})
    return facts


def _differing_elements(now: FactSheet, after: FactSheet, name: str) -> set[ConfigScalar]:
    """Of a list: the elements that one configuration has and the other lacks; nothing for other settings."""
    before, then = now.get(name).value, after.get(name).value
    if not isinstance(before, tuple) and not isinstance(then, tuple):
        return set()
    return set(list_elements(before)) ^ set(list_elements(then))


def _is_about(effect: Effect, now: FactSheet, after: FactSheet, changed: Iterable[str]) -> bool:
    """Whether ``effect`` is about what changes: its elements of a list, or what turns those on that stay in it."""
    elements = set(effect.elements)
    for name in effect.settings if elements else ():
        if elements & _differing_elements(now, after, name):
            return True
        listed = {each for sheet in (now, after) for each in list_elements(sheet.get(name).value)}
        if elements & listed and any(other in changed for other in effect.settings if other != name):
            return True
    return not elements


def _find_case(effect: Effect, now: FactSheet, after: FactSheet) -> EffectCase | None:
    """The first case that counts: changes may where a condition is not known, the others only where all hold.

    None also where a value is of another kind than a condition compares, as a text is for a number of samples.
    """
    with suppress(TypeError):
        for case in effect.cases:
            answers = {evaluate_all(case.from_, now), evaluate_all(case.to, after)}
            if answers == {Truth.HOLDS} or (case.changes and Truth.FAILS not in answers):
                return case
    return None


def _why_not_known(name: str, effects: Iterable[Effect]) -> str:
    owners = [effect.settings[0] for effect in effects if name in effect.together_with]
    if owners:
        others = " or ".join(dict.fromkeys(owner.partition(".")[2] for owner in owners))
        return f"it is known only together with {others}"
    return "no measurement shows it"


def _show(name: str, facts: FactSheet) -> str:
    return f"{name.partition('.')[2]}={show(facts.get(name).value)}"


def fill_entries(
    entries: Sequence[ReplayEntry], facts: FactSheet
) -> tuple[tuple[Transformation, ...], tuple[str, ...]]:
    """The transformations of the entries that apply to the run; else none, and the facts that are missing.

    As with edits, of several for the same work whose conditions are not known the first one counts.
    """
    transformations: list[Transformation] = []
    missing: list[str] = []
    uncertain: set[tuple[Action, SelectionEntry]] = set()
    for entry in entries:
        answer = evaluate_all(entry.only_if, facts)
        work = (entry.action, entry.selection)
        if answer is Truth.FAILS or (answer is Truth.UNKNOWN and work in uncertain):
            continue
        if answer is Truth.UNKNOWN:
            uncertain.add(work)
        missing += [name for name in entry.list_facts() if facts.number(name) is None]
        transformations.append(entry.fill(facts))
    return ((), tuple(dict.fromkeys(missing))) if missing else (tuple(transformations), ())


def _with_numbers(sheet: FactSheet, numbers: Mapping[str, FactValue]) -> FactSheet:
    """``sheet`` with the known numbers of the change, and the definitions of the others."""
    return replace(sheet, definitions={**sheet.definitions, **_NUMBERS}).with_values(numbers)


def _count_changes(now: FactSheet, after: FactSheet) -> dict[str, FactValue]:
    """The numbers of ``CHANGE_NUMBERS`` that are known."""
    numbers: dict[str, FactValue] = {}
    before, then = (sheet.number("config.micro_batch_size") for sheet in (now, after))
    if before and then:
        numbers["change.micro_batch_ratio"] = then / before
        if count := now.number("num_microbatches"):
            numbers["change.left_over_samples_count"] = count * before % then
    recomputed, recomputed_then = _find_recomputed_fraction(now), _find_recomputed_fraction(after)
    if recomputed is not None and recomputed_then is not None:
        numbers["change.recomputed_layers_after_fraction"] = recomputed_then
        numbers["change.recomputed_layers_left_fraction"] = (
            min(1.0, recomputed_then / recomputed) if recomputed else 0.0
        )
        numbers["change.recomputed_layers_added_fraction"] = max(0.0, recomputed_then - recomputed)
    return numbers


def _find_recomputed_fraction(facts: FactSheet) -> float | None:
    """Of the layers of a model chunk, those that are recomputed in full; None where that is not known.

    Megatron recomputes every layer with the method ``uniform``, and the first ``recompute_num_layers`` layers of each
    model chunk (a pipeline stage, or a virtual one) with ``block``.
    """
    granularity = facts.get(_GRANULARITY)
    if granularity.is_missing or granularity.value != "full":
        return None if granularity.is_missing else 0.0
    method, number = facts.get("config.recompute_method").value, facts.get("config.recompute_num_layers").value
    if method == "uniform":
        return 1.0
    layers = _count_layers(facts)
    if method != "block" or layers is None or not isinstance(number, int) or number < 1:
        return None
    return min(number, layers) / layers


def _count_layers(facts: FactSheet) -> int | None:
    """Layers of each model chunk; None where it is not known, or they differ."""
    if any(facts.get(f"config.{key}").value for key in UNEVEN_STAGES):
        return None
    layers = facts.number("config.num_layers")
    chunks = 1.0
    for name in ("config.pipeline_model_parallel_size", "config.virtual_pipeline_model_parallel_size"):
        chunks *= facts.number(name) or 1
    return round(layers / chunks) if layers and layers % chunks == 0 else None
