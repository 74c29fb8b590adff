"""Signs of short memory in a training log."""

from __future__ import annotations

import pytest

from three_walls.facts.log_facts import LOG_ALLOCATOR_RETRIES, LOG_OOMS, LOG_RESERVED_MEMORY
from three_walls.facts.memory_estimate import MEMORY_PEAK, NO_DEVICE_MEMORY
from three_walls.facts.recorded_memory import ALLOCATOR_CALLS, classify_memory_pressure
from three_walls.facts.run_layout import GPU_MEMORY
from three_walls.lib.fact import Measurements
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing


def pressure_of(
    peak: int | None, reserved: int | None = None, ooms: int = 0, retries: int | None = None
) -> Measurement[str]:
    """On a GPU of 1000 bytes."""
    measured: Measurements = {
        LOG_OOMS: known(ooms),
        LOG_ALLOCATOR_RETRIES: known_or_missing(retries, "not counted"),
        MEMORY_PEAK: known_or_missing(peak, "the log holds no memory line"),
        LOG_RESERVED_MEMORY: known_or_missing(reserved, "the log holds no memory line"),
        GPU_MEMORY: known(1000),
    }
    return classify_memory_pressure(measured)


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
    assert pressure_of(None) == missing("the log holds no memory line")


def test_without_the_size_of_the_gpu_a_peak_says_nothing() -> None:
    found = classify_memory_pressure({LOG_OOMS: known(0), MEMORY_PEAK: known(5)})
    assert found == missing(NO_DEVICE_MEMORY)


def test_steps_that_never_called_the_driver_had_room() -> None:
    for calls, word in ((0, "none"), (3, None)):
        measured: Measurements = {
            MEMORY_PEAK: missing("no training log was given (--log)"),
            ALLOCATOR_CALLS: known(calls),
        }
        assert classify_memory_pressure(measured).value == word
