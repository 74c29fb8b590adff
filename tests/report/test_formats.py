"""Walls, gains and facts as people read them."""

from __future__ import annotations

import pytest

from three_walls.advice.finding import Gain
from three_walls.lib.fact import Fact, FactValue
from three_walls.report import formats
from three_walls.tables.buckets import SubWall, Wall


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (640_000_000, "ns", "640 ms"),
        (80 * 2**30, "bytes", "80.0 GiB"),
        (48e9, "bytes_per_s", "48.0 GB/s"),
        (12_288, "count", "12,288"),
        (0.25, "fraction", "25.0%"),
        (1.066, "ratio", "1.07x"),
        (True, "flag", "yes"),
        (False, "flag", "no"),
        ("sm_90", "text", "sm_90"),
        (("attn", None, True), "config", "[attn, unset, true]"),
        (None, "config", "unset"),
    ],
)
def test_facts(value: FactValue, unit: str, text: str) -> None:
    assert formats.format_fact(Fact("x", value, unit)) == text


def test_a_missing_fact_is_unknown_and_not_unset() -> None:
    assert formats.format_fact(Fact("x", None, "ns", missing_reason="no NVTX")) == "unknown"


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Gain(12_000_000, 20_000_000, 30_000_000, "replayed"), "gain 12-30 ms, likely 20 ms (replayed)"),
        (Gain(20_000_000, 20_000_000, 20_000_000, "replayed"), "gain 20 ms (replayed)"),
        (
            Gain(-12_000_000, 20_000_000, 30_000_000, "replayed"),
            "gain -12 to 30 ms, likely 20 ms, may cost up to 12 ms (replayed)",
        ),
        (Gain(-30_000_000, -20_000_000, -12_000_000, "replayed"), "costs 12-30 ms, likely 20 ms (replayed)"),
        (
            Gain(-120_000_000, -2_000_000, 4_000_000, "replayed"),
            "gain -120 to 4 ms, likely -2 ms, may cost up to 120 ms (replayed)",
        ),
        (Gain(0, 20_000_000, 30_000_000, "replayed"), "gain 0-30 ms, likely 20 ms (replayed)"),
        (Gain(None, None, None, "none"), "gain unknown"),
        (Gain(None, None, None, "frees_memory"), "frees memory"),
        (Gain(0, None, 12_340_000, "upper_bound"), "gain up to 12.3 ms (upper bound)"),
        (Gain(None, None, None, "upper_bound"), "gain unknown"),
        (Gain(None, None, None, "none"), "gain unknown"),
        (Gain(None, None, None, "frees_memory", "", 0.015), "frees memory, costs about 1.5% of the step"),
        (Gain(None, None, None, "frees_memory", "", 0.06), "frees memory, costs about 6.0% of the step"),
        (Gain(None, None, None, "frees_memory", "", 0.0), "frees memory, costs no time"),
    ],
)
def test_what_an_edit_gives_reads_as_it_is_known(gain: Gain, text: str) -> None:
    assert formats.describe_gain(gain) == text


def test_walls_name_their_half() -> None:
    assert formats.format_wall(Wall.COMPUTE_HOST, SubWall.HOST) == "Compute/host wall: host-bound"
    assert formats.format_wall(None) == "No wall named"


def test_a_loss_below_the_precision_of_the_range_is_none() -> None:
    gain = Gain(-40_000, 4_000_000, 60_000_000, "replayed")
    assert formats.describe_gain(gain) == "gain 0-60 ms, likely 4 ms (replayed)"
