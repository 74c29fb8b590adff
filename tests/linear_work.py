"""The law of every parser: twice the input takes at most two and a half times the work.

Work is CPU time. It is compared from a size at which it can be measured, as the shortest of several runs. A comparison
that fails is made again with twice the size. Linear work passes at one of them: a step, where the data outgrow a cache
or the pool of threads wakes up, lies at one size, and another process disturbs one comparison. Quadratic work fails at
all.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

Input = TypeVar("Input")

_MOST_TIMES = 2.5
_MEASURABLE_S = 0.01
_TOO_LONG_S = 2.0
_SIZES = 4


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
    seconds = []
    for power in range(_SIZES + 1):
        made = make(size // 2 << power)
        seconds.append(cpu_seconds(lambda read=made: parse(read), runs=3))
        if power and seconds[-1] <= _MOST_TIMES * seconds[-2]:
            return
    raise AssertionError(
        f"from size {size // 2} on, each twice the one before, the work takes "
        + ", ".join(f"{value:.3f} s" for value in seconds)
    )
