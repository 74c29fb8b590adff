"""The law of every parser: twice the input takes at most two and a half times the work.

Work is CPU time. It is compared at a size at which it can be measured, as the shortest of several runs. A comparison
that fails is repeated: another process may disturb one of them, but not make quadratic work linear.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

Input = TypeVar("Input")

MOST_TIMES = 2.5
_MEASURABLE_S = 0.01
_TOO_LONG_S = 2.0
_ATTEMPTS = 4


def cpu_seconds(run: Callable[[], object], runs: int = 1) -> float:
    """The CPU time of the shortest of some ``runs``."""
    shortest = float("inf")
    gc.disable()  # its work grows with all objects of the process
    try:
        for _ in range(runs):
            begin = time.process_time()
            run()
            shortest = min(shortest, time.process_time() - begin)
    finally:
        gc.enable()
    return shortest


def assert_linear(make: Callable[[int], Input], parse: Callable[[Input], object], start: int, most: int) -> None:
    """Asserts the law for inputs ``make(n)``, n from ``start`` up to ``most``, where the work becomes measurable."""
    size, spent = start, 0.0
    while size <= most and spent < _MEASURABLE_S:
        small = make(size)
        spent = cpu_seconds(lambda read=small: parse(read))
        assert spent < _TOO_LONG_S, f"size {size} takes {spent:.1f} s"
        size *= 2
    if spent < _MEASURABLE_S:
        return
    large = make(size)
    size //= 2
    times = 0.0
    for _ in range(_ATTEMPTS):
        once = cpu_seconds(lambda: parse(small), runs=3)
        twice = cpu_seconds(lambda: parse(large), runs=2)
        times = twice / once
        if times <= MOST_TIMES:
            return
    raise AssertionError(
        f"twice the input of size {size} takes {times:.1f} times the work ({once:.3f} s, {twice:.3f} s)"
    )
