"""Signs of short memory in a training log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts.views import run_view
from three_walls.facts.memory_estimate import NO_DEVICE_MEMORY
from three_walls.facts.recorded_memory import memory_pressure
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.trace.identity import Gpu

NO_LINE = "the log holds no memory line"


def pressure_of(
    peak: int | None,
    reserved: int | None = None,
    ooms: int = 0,
    retries: int | None = None,
    *,
    device_bytes: int | None = 1000,
    calls: int | None = None,
) -> Measurement[str]:
    run = replace(run_view(), device=None if device_bytes is None else Gpu("H200", "sm_90", device_bytes))
    return memory_pressure(
        run,
        known(ooms),
        known_or_missing(retries, "not counted"),
        known_or_missing(peak, NO_LINE),
        known_or_missing(reserved, NO_LINE),
        known_or_missing(calls, "not recorded"),
    )


@pytest.mark.parametrize(
    ("peak", "reserved", "word"),
    [(899, 949, "none"), (900, 949, "near_limit"), (899, 950, "fragmented"), (899, None, "none")],
)
def test_the_peaks_are_held_against_the_memory_of_the_gpu(peak: int, reserved: int | None, word: str) -> None:
    assert pressure_of(peak, reserved) == known(word)


def test_a_report_of_memory_exhausted_comes_before_all_and_needs_no_peak() -> None:
    assert pressure_of(None, ooms=1, retries=3) == known("out_of_memory")


def test_allocations_tried_again_come_before_the_peaks() -> None:
    assert pressure_of(950, retries=1) == known("allocator_retries")
    assert pressure_of(100, retries=0) == known("none")


def test_a_log_without_peak_says_nothing_more() -> None:
    assert pressure_of(None) == missing(NO_LINE)


def test_without_the_size_of_the_gpu_a_peak_says_nothing() -> None:
    assert pressure_of(5, device_bytes=None) == missing(NO_DEVICE_MEMORY)


def test_steps_that_never_called_the_driver_had_room() -> None:
    assert pressure_of(None, calls=0) == known("none")
    assert pressure_of(None, calls=3) == missing(NO_LINE)
