"""Warnings that are comparisons of facts: what they say, and when they say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advice.builders import MS, sheet_of
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.judge_warnings import judge_warnings, load_warnings
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.errors import RuleBaseError
from three_walls.lib.fact import Fact, FactSheet
from three_walls.lib.plain_data import ConfigData
from three_walls.step.step_rows import Straggler

WARNINGS = load_rule_base(DEFINITIONS).warnings


def codes(**values: ConfigData) -> list[str]:
    measured: dict[str, ConfigData] = {
        "ep_transfer_is_lower_bound": False,
        "ep_transfer_exposed_ns": 0,
        "ep_exposed_ns": 0,
    }
    sheet = sheet_of(measured | {name.replace("__", "."): value for name, value in values.items()})
    return [warning.code for warning in judge_warnings(WARNINGS, sheet)]


def straggler_message(cause: str, late_ms: int, excess_ms: int | None, culprit_ms: int = 50) -> str:
    facts = {"step_ns": 500 * MS, "culprit_cost_ns": culprit_ms * MS} | (
        {} if excess_ms is None else {"profiler_excess_ns": excess_ms * MS}
    )
    found = judge_warnings(WARNINGS, sheet_of(facts), [Straggler(2, late_ms * MS, cause, "")])
    return " ".join(warning.message for warning in found)


def test_a_rank_that_delays_much_of_the_step_is_named() -> None:
    message = straggler_message("slow compute", 100, None)
    assert message.startswith("Rank 2 delays the other ranks by 20.0% of the traced step (slow compute).")
    assert straggler_message("slow compute", 26, None).startswith("Rank 2 delays the other ranks by 5.2% of")
    assert straggler_message("slow compute", 24, None) == ""


def test_a_late_rank_that_is_not_the_one_to_fix_is_no_reason_to_hold_the_plan_back() -> None:
    message = straggler_message("slow compute", 100, None, culprit_ms=0)
    assert message.startswith(
        "Rank 2 delays the other ranks by 20.0% of the traced step (slow compute), but no fault of its own"
    )
    assert "the plan need not wait" in message
    assert "Find out why" not in message


def test_a_rank_whose_launches_the_profiler_slows_may_be_late_in_traced_steps_only() -> None:
    assert "late only in traced steps" in straggler_message("launch-starved", 60, 80)


def test_the_profiler_explains_neither_more_delay_than_it_adds_nor_slow_computing() -> None:
    for cause, late_ms, excess_ms in (
        ("launch-starved", 90, 80),
        ("slow compute", 60, 80),
        ("launch-starved", 60, None),
    ):
        assert "Find out why" in straggler_message(cause, late_ms, excess_ms)


def test_each_threshold_decides() -> None:
    assert codes(wait_exposed_fraction=0.10) == ["waiting-for-peers"]
    assert codes(wait_exposed_fraction=0.10, ep_transfer_is_lower_bound=True) == ["uneven-exchanges"]
    assert codes(wait_exposed_fraction=0.04, ep_transfer_is_lower_bound=True) == []
    assert codes(wait_exposed_fraction=0.099) == []


def test_late_launches_are_doubted_until_a_log_shows_unprofiled_steps() -> None:
    late = {"launch_starved_fraction": 0.2, "kernel_count": 10_000}
    assert codes(**late, log_files_count=0) == ["host-time-under-profiler"]
    assert codes(**late, log_files_count=1, profiler_perturbation_ratio=1.4) == []
    assert codes(**late | {"launch_starved_fraction": 0.09}, log_files_count=0) == []


def test_a_log_that_was_given_is_not_asked_for_again() -> None:
    late = {"launch_starved_fraction": 0.2, "kernel_count": 10_000}
    assert codes(**late, log_files_count=1) == ["host-time-under-profiler"]


def test_nvtx_ranges_matter_where_launches_are_late() -> None:
    assert codes(launch_starved_fraction=0.2, config__nvtx_ranges=True) == ["nvtx-ranges"]
    assert codes(launch_starved_fraction=0.2, config__nvtx_ranges=False) == []
    assert codes(launch_starved_fraction=0.09, config__nvtx_ranges=True) == []


def test_recompute_of_unknown_length_is_named_with_the_reason() -> None:
    sheet = FactSheet.of(
        [
            Fact("attention_forward_per_backward_ratio", 2.0, "ratio"),
            Fact("recompute_ns", None, "ns", missing_reason="replays have no names"),
        ]
    )
    (warning,) = judge_warnings(WARNINGS, sheet)
    assert (warning.code, warning.message.startswith("Replays have no names.")) == ("recompute-not-priced", True)
    assert codes(attention_forward_per_backward_ratio=2.0, recompute_ns=0) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("code: c\nwhen: step_nss > 0\nmessage: m", "2:7: unknown fact step_nss (did you mean step_ns?)"),
        ("code: c\nwhen: step_ns > 0\nmessage: '{step_nss:ms}'", "3:10: unknown fact step_nss"),
        ("code: c\nwhen: step_ns > 0\nmessage: '{step_ns:mss}'", "3:10: unknown form mss (did you mean ms?)"),
        ("code: c\nwhen: step_ns > 0\nmessage: '{step_ns}'", "3:10: expected {fact:form} in braces"),
    ],
)
def test_mistakes_in_a_warning_have_their_place(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "warnings").mkdir()
    (tmp_path / "warnings" / "c.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RuleBaseError) as caught:
        load_warnings(tmp_path, definitions=DEFINITIONS)
    assert complaint in str(caught.value)
