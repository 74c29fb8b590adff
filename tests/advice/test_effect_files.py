"""Files of effects: what they are read as, the errors with their places, and what the shipped ones are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.advice.builders import read, sheet_of
from tests.advice.test_rulebase import effects_directory
from tests.try_each import try_each
from three_walls.advice.compare_settings import _find_case, compare_settings, is_set
from three_walls.advice.format.conditions import list_conditions, unit_of_setting
from three_walls.advice.format.effect import CHANGE_NUMBERS, Effect, EffectCase
from three_walls.advice.format.load_rules import load_effects, load_rule_base
from three_walls.advice.format.rule import Rule
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.errors import RuleBaseError
from three_walls.lib.expressions import CONTAINING, Condition
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import RULES_DIR
from three_walls.replay.transformation import Action, Selection, Transformation
from three_walls.tables.config_keys import config_keys
from three_walls.tables.prediction_intervals import Levels

FUSED = """\
id: fused
phase: work
settings: [config.moe_permute_fusion]
elements: [a]
together_with: [env.SOME_VARIABLE]
cases:
  - from: config.moe_permute_fusion is not True
    to:
      - config.moe_permute_fusion is True
      - change.micro_batch_ratio >= 2
    changes:
      - fuse: {work: [permute]}
        time: 0.5
        reason: one kernel
        source: guide:A guide
  - nothing: it is
      the same
  - unknown: nobody knows
otherwise: the capture does not show it
"""


def read_effects(tmp_path: Path, text: str = FUSED, name: str = "fused") -> tuple[Effect, ...]:
    return load_effects(effects_directory(tmp_path, text, name), definitions=DEFINITIONS)


def test_a_correct_effect_is_read_in_full(tmp_path: Path) -> None:
    (found,) = read_effects(tmp_path)
    assert (found.id, found.phase, found.settings) == ("fused", "work", ("config.moe_permute_fusion",))
    assert (found.elements, found.together_with) == (("a",), ("env.SOME_VARIABLE",))
    first, second, third = found.cases
    assert first.from_ == read("config.moe_permute_fusion is not True")
    assert first.to == (*read("config.moe_permute_fusion is True"), Condition("change.micro_batch_ratio", ">=", 2))
    assert first.changes[0].fill(sheet_of({})) == Transformation(
        Action.FUSE,
        Selection(work=("permute",)),
        time=Levels(0.5, 0.5, 0.5),
        reason="one kernel",
        source="guide:A guide",
    )
    assert (second.nothing, third.unknown) == ("it is the same", "nobody knows")
    assert found.otherwise == "the capture does not show it"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("id: fused", "id: other", "1:5: expected the file's name fused as id, found other"),
        ("phase: work", "phase: wrk", "2:8: expected one of work, recompute, overlap, launches, passes, found wrk"),
        ("[config.moe_permute_fusion]", "[step_ns]", "3:11: expected config.<key> or env.<VARIABLE>, found step_ns"),
        ("[config.moe_permute_fusion]", "[]", "an effect has settings and cases: found none"),
        ("[env.SOME_VARIABLE]", "[gpu.sm]", "5:16: expected config.<key> or env.<VARIABLE>, found gpu.sm"),
        (
            "  - unknown: nobody knows\n",
            "  - to: config.bf16 is True\n",
            "a case has one of changes, nothing and unknown",
        ),
        (
            "  - unknown: nobody knows\n",
            "  - {unknown: nobody knows, nothing: the same}\n",
            "a case has one of changes, nothing and unknown",
        ),
        ("change.micro_batch_ratio", "change.micro_batch_ration", "unknown fact change.micro_batch_ration"),
        ("guide:A guide", "nowhere:x", "unknown source nowhere"),
        ("otherwise: the capture does not show it\n", "", "key otherwise is missing"),
        ("  - unknown: nobody knows\n", "  - {unknown: why, colour: red}\n", "unknown key colour"),
    ],
)
def test_each_mistake_has_its_sentence(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in FUSED
    with pytest.raises(RuleBaseError) as caught:
        read_effects(tmp_path, FUSED.replace(old, new))
    assert complaint in str(caught.value)
    assert f"{tmp_path}/effects/fused.yaml:" in str(caught.value)


def test_effects_are_applied_by_phase_and_then_by_id(tmp_path: Path) -> None:
    for name, phase in (("a", "passes"), ("c", "work"), ("b", "work"), ("d", "recompute")):
        read_effects(
            tmp_path, FUSED.replace("id: fused", f"id: {name}").replace("phase: work", f"phase: {phase}"), name
        )
    assert [each.id for each in load_effects(tmp_path, definitions=DEFINITIONS)] == ["b", "c", "d", "a"]


def test_an_effect_of_ones_own_takes_the_place_of_the_shipped_one_of_its_id(tmp_path: Path) -> None:
    own = FUSED.replace("id: fused", "id: fused-rope").replace("guide:A guide", "mcore:a.py:1")
    directory = effects_directory(tmp_path, own, "fused-rope")
    (directory / "sources.yaml").unlink()
    found = load_effects(RULES_DIR, directory, definitions=DEFINITIONS)
    assert len(found) == len(SHIPPED)
    assert next(each for each in found if each.id == "fused-rope").otherwise == "the capture does not show it"


SHIPPED = load_rule_base(DEFINITIONS).effects
RULES = load_rule_base(DEFINITIONS).rules
NUMBERS = {number.name for number in CHANGE_NUMBERS}
NAMED = {name for each in SHIPPED for name in (*each.settings, *each.together_with)} | {"config.mixed_precision"}
"""Settings that some effect is about; a precision recipe stands for those that it sets."""


@try_each([rule for rule in RULES if rule.edits], lambda rule: rule.id)
def test_every_setting_that_a_rule_edits_is_one_that_an_effect_is_about(rule: Rule) -> None:
    edits = [*rule.edits, *(edit for each in rule.requires.values() for edit in each.fix)]
    assert {f"{edit.kind}.{edit.key}" for edit in edits} <= NAMED


def test_effects_are_about_settings_that_exist() -> None:
    keys = {name.removeprefix("config.") for name in NAMED if name.startswith("config.")}
    assert keys <= set(config_keys().keys)


def test_companions_are_no_settings_of_the_same_effect() -> None:
    for each in SHIPPED:
        assert not set(each.settings) & set(each.together_with), each.id


def _conditions(found: EffectCase) -> Iterator[Condition]:
    yield from list_conditions((*found.from_, *found.to))


@try_each(SHIPPED, lambda found: found.id)
def test_conditions_on_the_new_settings_compare_settings_and_numbers_of_the_change(found: Effect) -> None:
    """Measured facts are those of the run as it is: they belong to ``from``."""
    for each in found.cases:
        compared = {condition.name for condition in list_conditions(each.to)}
        assert all(unit_of_setting(name) or name in NUMBERS for name in compared), compared


@try_each(SHIPPED, lambda found: found.id)
def test_every_case_is_one_that_some_change_comes_to(found: Effect) -> None:
    """Random values of what the conditions compare, on either side of each, make every case the first that counts."""
    values, random = _values_of(found), Random(found.id)
    waiting, tries = list(found.cases), 4000
    while waiting and (tries := tries - 1):
        now = {name: random.choice(options) for name, options in values.items()}
        new = {name: random.choice(values[name]) for name in now if random.random() < 0.7 and unit_of_setting(name)}
        counts = _find_case(found, sheet_of(now), sheet_of(now | new))
        waiting = [each for each in waiting if each is not counts]
    assert waiting == []


def _values_of(found: Effect) -> Mapping[str, tuple[ConfigData, ...]]:
    """For each name that the conditions of ``found`` compare: values on either side of each comparison."""
    values: dict[str, list[ConfigData]] = {}
    for condition in (each for one in found.cases for each in _conditions(one)):
        options = values.setdefault(condition.name, [])
        value: Any = condition.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            options += [value, value - 1, value + 1] if value >= 1 else [value, value + 0.25, -1]
        elif condition.operator in CONTAINING:
            options += [(), (value,)]
            options += [(value, *each) for each in options if isinstance(each, tuple) and value not in each]
        elif isinstance(value, tuple):
            options += [*value, "another"]
        else:
            options += [value, True, False] if isinstance(value, bool) else [value, "another"]
    return {name: tuple(dict.fromkeys(options)) for name, options in values.items()}


def _plain_values() -> st.SearchStrategy[ConfigData]:
    words = sorted(
        {
            value
            for each in SHIPPED
            for one in each.cases
            for condition in _conditions(one)
            for value in (condition.value if isinstance(condition.value, tuple) else (condition.value,))
            if isinstance(value, str)
        }
        | {element for each in SHIPPED for element in each.elements}
    )
    lists = st.lists(st.sampled_from(words), max_size=3).map(tuple)
    return st.one_of(st.none(), st.booleans(), st.integers(-1, 64), st.sampled_from(words), lists)


ASSIGNMENTS = st.dictionaries(st.sampled_from(sorted(NAMED)), _plain_values(), max_size=8)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(ASSIGNMENTS, ASSIGNMENTS, st.randoms(use_true_random=False))
def test_any_assignment_of_settings_gives_an_answer_that_depends_on_the_configurations_alone(
    now: dict[str, ConfigData], new: dict[str, ConfigData], random: Random
) -> None:
    run = sheet_of(now)
    found = compare_settings(SHIPPED, run, new)
    shuffled = list(new.items())
    random.shuffle(shuffled)
    assert compare_settings(SHIPPED, run, dict(shuffled)) == found
    assert all("\n" not in text and text for text in (*found.unknown, *found.notes))
    if all(is_set(name, value, run) for name, value in new.items()):
        assert not found.transformations
        assert not found.unknown
