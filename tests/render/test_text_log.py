"""The log's line in the report."""

from __future__ import annotations

from three_walls.render.text_log import describe_log
from three_walls.vocabulary.report import LogSummary

GIB = 2**30
SUMMARY = LogSummary(
    files=("train.log",),
    iterations=10,
    roles={"steady": 6, "warm-up": 2, "profiled": 2},
    torn_lines=0,
    unprofiled_step_ns=232_000_000,
    peak_memory_bytes=17 * GIB,
    reserved_memory_bytes=19 * GIB,
    allocator_retries=None,
    theoretical_memory_bytes=None,
    parameters=None,
    ooms=0,
    events={},
)


def test_the_log_is_one_line() -> None:
    assert describe_log(SUMMARY) == (
        "Log: unprofiled step 232 ms (6 of 10 iterations; 2 warm-up, 2 profiled); "
        "peak memory 17.0 GiB, reserved 19.0 GiB"
    )


def test_what_is_not_known_is_not_zero() -> None:
    bare = LogSummary(("a",), 0, {}, 3, None, None, None, None, None, None, 2, {})
    assert describe_log(bare) == (
        "Log: unprofiled step unknown (0 of 0 iterations); memory exhausted 2 times; 3 torn lines left out"
    )
