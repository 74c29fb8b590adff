"""Signs of short memory in a training log."""

from __future__ import annotations

import pytest

from three_walls.facts.memory_pressure import Known, classify_memory_pressure
from three_walls.tables.thresholds import default_log_thresholds


def told(peak: int | None, reserved: int | None = None, ooms: int = 0, retries: int | None = None) -> Known:
    """A GPU of 1000 bytes."""
    known: dict[str, Known] = {
        "log_oom_count": (ooms, None),
        "log_allocator_retries_count": (retries, None if retries is not None else "not counted"),
        "memory_peak_bytes": (peak, None if peak is not None else "the log holds no memory line"),
        "log_reserved_memory_bytes": (reserved, None if reserved is not None else "the log holds no memory line"),
        "gpu.memory_bytes": (1000, None),
    }
    return classify_memory_pressure(known, default_log_thresholds())


@pytest.mark.parametrize(
    ("peak", "reserved", "word"),
    [(899, 949, "none"), (900, 949, "near_limit"), (899, 950, "fragmented"), (899, None, "none")],
)
def test_the_peaks_are_held_against_the_memory_of_the_gpu(peak: int, reserved: int | None, word: str) -> None:
    assert told(peak, reserved) == (word, None)


def test_a_report_of_memory_exhausted_comes_before_all_and_needs_no_peak() -> None:
    assert told(None, ooms=1, retries=3) == ("out_of_memory", None)


def test_allocations_tried_again_come_before_the_peaks() -> None:
    assert told(950, retries=1) == ("allocator_retries", None)
    assert told(100, retries=0) == ("none", None)


def test_a_log_without_peak_says_nothing_more() -> None:
    assert told(None) == (None, "the log holds no memory line")


def test_without_the_size_of_the_gpu_a_peak_says_nothing() -> None:
    known: dict[str, Known] = {"log_oom_count": (0, None), "memory_peak_bytes": (5, None)}
    value, reason = classify_memory_pressure(known, default_log_thresholds())
    assert value is None
    assert reason == "the trace does not say how much memory the GPU has"


def test_steps_that_never_called_the_driver_had_room() -> None:
    for calls, word in ((0, "none"), (3, None)):
        known: dict[str, Known] = {
            "memory_peak_bytes": (None, "no training log was given (--log)"),
            "allocator_calls_in_steps_count": (calls, None),
        }
        assert classify_memory_pressure(known, default_log_thresholds())[0] == word
