"""Conditions: what they may say, when they hold, and when they are unknown."""

from __future__ import annotations

import pytest

from tests.runs.sample_runs import make_log_run, make_run
from three_walls.facts.sheet import DEFINITION_BY_NAME
from three_walls.lib.errors import UsageError
from three_walls.report.comparison import ConditionOutcome, ConditionResult
from three_walls.runs.compare_runs import compare_pair
from three_walls.runs.compared_run import Run
from three_walls.runs.gate import judge_gate, list_quantities, read_gate

HOLDS, PASSES = ConditionOutcome.HOLDS, ConditionOutcome.DOES_NOT_HOLD
WITHIN, UNKNOWN = ConditionOutcome.WITHIN_SPREAD, ConditionOutcome.UNKNOWN


def judge(expression: str, before: Run, after: Run, *, strict: bool = False) -> ConditionResult:
    gate = read_gate(expression, DEFINITION_BY_NAME)
    return judge_gate(gate, before, after, compare_pair(before, after), strict=strict)


@pytest.mark.parametrize(
    ("expression", "outcome"),
    [
        ("step > +3%", HOLDS),  # 600 -> 630 ms
        ("step > 3%", HOLDS),
        ("step>+3%", HOLDS),
        ("step > +6%", PASSES),
        ("step > +20 ms", HOLDS),
        ("step > +0.05 s", PASSES),
        ("step > 620 ms", HOLDS),
        ("step > 640ms", PASSES),
        ("step >= 630 ms", HOLDS),
        ("step < 600 ms", PASSES),
        ("traced_step > 600 ms", HOLDS),
        ("idle > +5 ms", PASSES),
        ("communication > 150 ms", HOLDS),
        ("ep_all_to_all > +1%", PASSES),
        ("ep.exposed_fraction > 0.2", HOLDS),
        ("ep.exposed_fraction > +0.02", PASSES),
        ("ep.exposed > +2%", PASSES),
        ("ep_all_to_all.hidden < 1 ms", PASSES),
        ("ep_dispatch_combine.busy > 1 ms", PASSES),  # not in the step: 0
        ("kernel_count > 18000", HOLDS),
        ("gpu.memory_bytes < 90 GiB", HOLDS),
    ],
)
def test_a_condition_holds_or_does_not(expression: str, outcome: ConditionOutcome) -> None:
    assert judge(expression, make_run(step_ms=600), make_run("edit", step_ms=630)).outcome is outcome


def test_a_difference_within_the_spread_holds_with_strict_only() -> None:
    before, after = make_run(half_ms=10), make_run("edit", step_ms=615, half_ms=10)
    assert judge("step > +1%", before, after).outcome is WITHIN
    assert judge("step > +1%", before, after, strict=True).outcome is HOLDS
    assert judge("step > 610 ms", before, after).outcome is HOLDS  # AFTER's own value has no difference


def test_a_condition_that_asks_for_a_gain_is_not_met_by_noise() -> None:
    before, after = make_run(half_ms=10), make_run("edit", step_ms=590, half_ms=10)
    assert judge("step > -3%", before, after).outcome is HOLDS  # less than 3% faster


def test_a_bucket_within_the_range_of_its_kept_steps_is_within_the_spread() -> None:
    before, after = make_run(), make_run("edit", buckets_ms={"ep_all_to_all": 152})
    assert judge("ep_all_to_all > +1 ms", before, after).outcome is WITHIN
    assert judge("ep_all_to_all > +1 ms", before, make_run(buckets_ms={"ep_all_to_all": 190})).outcome is HOLDS


@pytest.mark.parametrize(
    "expression", ["ep.exposed_fraction > +0.02", "idle > +5 ms", "memory.peak > +1 GiB", "recompute_ns > +5 ms"]
)
def test_what_is_not_known_is_neither_passed_nor_failed(expression: str) -> None:
    result = judge(expression, make_run(), make_log_run())
    assert result.outcome is UNKNOWN
    assert "is not known" in result.reason


def test_a_relative_change_of_nothing_is_not_known_unless_nothing_changed() -> None:
    before = make_run()
    assert judge("ep_dispatch_combine > +5%", before, before).outcome is PASSES
    after = make_run(buckets_ms={"attention_unfused": 5})
    assert judge("attention_unfused > +5%", before, after).outcome is UNKNOWN


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("step", "expected NAME OP"),
        ("step > fast", "expected NAME OP"),
        ("step = 3%", "expected NAME OP"),
        ("step > +3% or idle > 2 ms", "expected NAME OP"),
        ("step > +3", "is written with ns, us, ms, s, or %"),
        ("step > +3 GiB", "is written with ns, us, ms, s, or %"),
        ("stpe > +3%", "near names: step"),
        ("ep_all_to_al > +3%", "near names: ep_all_to_all"),
        ("ep.exposed_fraction > 30%", "write 0.3 for a share of 30%"),
        ("ep_spans_nodes > 1", "expected the name of a quantity"),
        ("kernel_count > 5 ms", "is written with no unit, or %"),
        ("", "expected NAME OP"),
    ],
)
def test_an_expression_that_cannot_be_read_is_one_line_with_what_was_expected(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match="--fail-if: ") as error:
        read_gate(expression, DEFINITION_BY_NAME)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_quantity_that_is_offered_can_be_read() -> None:
    for name in list_quantities(DEFINITION_BY_NAME):
        assert read_gate(f"{name} > +1%", DEFINITION_BY_NAME).is_relative
