"""Idle causes in words and colours. A cause that is not listed is shown by its name, in a colour that is free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class CauseLook(NamedTuple):
    colour: str
    meaning: str


_LATE = "The next compute kernel was not launched yet; its thread"

CAUSES: dict[str, CauseLook] = {
    "blocking": CauseLook("#d97706", "The next compute kernel had to wait for an operation that was running."),
    "profiler": CauseLook("#dfe3e8", "The profiler held up the thread that launches the next compute kernel."),
    "starved_synchronizing": CauseLook("#4b5563", f"{_LATE} waited for the device."),
    "starved_allocating": CauseLook("#7c6a9c", f"{_LATE} allocated memory or loaded code."),
    "starved_copying": CauseLook("#a78bda", f"{_LATE} launched copies or fills."),
    "starved_launching": CauseLook("#5b7fa6", f"{_LATE} launched other work."),
    "starved_nothing_visible": CauseLook("#94a3b8", f"{_LATE} made no CUDA call: Python, data loading, locks."),
    "dependency_stalled": CauseLook(
        "#b45f5f", "Launched, but held by an event or graph whose producer cannot be told."
    ),
    "launch_latency": CauseLook("#5fb3c9", "Launched, held by nothing visible: the way from the call to the device."),
    "unexplained": CauseLook("#c3cad4", "What is left: no launch recorded, or nothing visible held the kernel."),
}

_FREE_COLOURS = ("#0d9488", "#8b5cf6", "#c2577a", "#7c9a3e", "#2f6ec4", "#a0765b")
_GREY = "#a9b2bf"


def colour_causes(causes: Iterable[str]) -> dict[str, str]:
    """Causes, longest first, to colours; the many short ones that are not listed share a grey."""
    free = iter(_FREE_COLOURS)
    return {cause: CAUSES[cause].colour if cause in CAUSES else next(free, _GREY) for cause in causes}


def explain_cause(cause: str) -> str:
    return CAUSES[cause].meaning if cause in CAUSES else ""
