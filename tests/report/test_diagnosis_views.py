"""Sums and orders behind the sections that say why the time went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from three_walls.model.report import GapCause, MoePart, Report, Wait
from three_walls.report.diagnosis_views import (
    ClassWait,
    list_moe_parts,
    merge_gap_causes,
    order_overlap_slowdown,
    order_stragglers,
    order_waits,
    sum_moe_parts,
    summarize_waits,
    tabulate_moe_layers,
)


def test_causes_are_merged_longest_first_and_keep_all_of_the_time(report: Report) -> None:
    for rank in report.ranks:
        merged = merge_gap_causes(rank)
        assert sum(one.ns for one in merged) == sum(one.ns for one in rank.gap_causes)
        assert [one.ns for one in merged] == sorted((one.ns for one in merged), reverse=True)


def test_equal_details_are_one_and_empty_ones_are_not_listed(report: Report) -> None:
    causes = (GapCause("a", 2, "x"), GapCause("a", 1), GapCause("b", 0), GapCause("a", 3, "x"))
    (merged,) = merge_gap_causes(replace(report.ranks[0], gap_causes=causes))
    assert (merged.cause, merged.ns, merged.details) == ("a", 6, (GapCause("a", 5, "x"),))


def test_a_share_of_no_step_is_unknown(report: Report) -> None:
    (merged,) = merge_gap_causes(replace(report.ranks[0], budget_ns={}, gap_causes=(GapCause("a", 2),)))
    assert merged.fraction is None


def test_stragglers_and_taxes_come_dearest_first(report: Report) -> None:
    assert [one.rank for one in order_stragglers(report)] == [0, 5]
    taxes = [one.slowdown_ns for one in order_overlap_slowdown(report)]
    assert taxes == sorted(taxes, reverse=True)


def summarize(report: Report, *waits: Wait) -> ClassWait:
    (row,) = summarize_waits(replace(report, waits=waits))
    return row


def test_the_rank_most_waited_for_is_the_one_with_most_time(report: Report) -> None:
    row = summarize(
        report,
        Wait("all_gather", 0, 10, 5, 3, True, "latest arrival"),
        Wait("all_gather", 1, 4, 5, 2, True, "latest arrival"),
        Wait("all_gather", 2, 5, 5, 2, True, "latest arrival"),
        Wait("all_gather", 3, None, None, None, False, "not matched"),
    )
    assert (row.mostly_for, row.wait_low_ns, row.wait_high_ns) == (3, 4, 10)
    assert (row.rank_count, row.resolved_count, row.unknown_count) == (4, 3, 1)
    assert row.notes == ("latest arrival", "not matched")
    assert not row.is_without_wait


def test_waits_that_cannot_be_told_stay_unknown(report: Report) -> None:
    row = summarize(report, Wait("all_gather", 0, None, None, None, False, ""))
    assert (row.wait_low_ns, row.transfer_high_ns, row.mostly_for) == (None, None, None)
    assert not row.is_without_wait
    assert summarize(report, Wait("all_gather", 0, 0, 5, None, True, "")).is_without_wait


def test_waits_stand_in_order_of_class_and_rank(report: Report) -> None:
    shuffled = replace(report, waits=tuple(reversed(report.waits)))
    assert order_waits(shuffled) == order_waits(report)
    assert [row.communication_class for row in summarize_waits(report)] == ["ep_all_to_all", "all_gather", "all_reduce"]


def test_sums_over_layers_keep_time_and_bytes(report: Report) -> None:
    sums = sum_moe_parts(report)
    assert sum(one.ns for one in sums) == sum(one.ns for one in report.moe_layers)
    dispatch = next(one for one in sums if (one.direction, one.part) == ("forward", "dispatch"))
    assert dispatch.bytes_moved == 48 * 28_000_000
    assert dispatch.bytes_per_s == pytest.approx(dispatch.bytes_moved / dispatch.ns * 1e9)
    assert dispatch.limit_bytes_per_s == 50e9
    assert [one.part for one in sums[:3]] == ["router", "permute", "dispatch"]


def test_one_unknown_layer_makes_the_bytes_of_the_sum_unknown(report: Report) -> None:
    told = MoePart(0, "forward", "dispatch", 10, 10, 1, 100, 1e10, 5e10)
    (total,) = sum_moe_parts(replace(report, moe_layers=(told, MoePart(1, "forward", "dispatch", 10, 10, 1))))
    assert (total.ns, total.bytes_moved, total.bytes_per_s, total.limit_bytes_per_s) == (20, None, None, None)


def test_what_is_said_of_all_layers_is_not_added_to_them(report: Report) -> None:
    layers = (MoePart(None, "forward", "router", 30, 0, 3), MoePart(0, "forward", "router", 10, 0, 1))
    odd = replace(report, moe_layers=layers)
    assert sum_moe_parts(odd) == (layers[0],)
    assert list_moe_parts(odd) == (layers[1],)


def test_a_table_of_layers_has_a_place_for_every_part_and_the_sums_last(report: Report) -> None:
    layers = (MoePart(4, "backward", "combine", 7, 7, 1), MoePart(2, "backward", "router", 5, 0, 1))
    (table,) = tabulate_moe_layers(replace(report, moe_layers=layers))
    assert table.parts == ("router", "combine")
    assert [layer for layer, _ in table.rows] == [2, 4, None]
    assert table.rows[0][1] == (layers[1], None)
    assert [cell and cell.ns for cell in table.rows[2][1]] == [5, 7]
