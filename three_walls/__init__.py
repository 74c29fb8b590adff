"""three-walls: names the wall that holds a Megatron MoE training run back, and the config edits to try.

from three_walls import analyze

report = analyze("trace.sqlite")
print(report.verdict.wall, report.verdict.reason)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from three_walls.model.errors import ThreeWallsError
from three_walls.version import VERSION

if TYPE_CHECKING:
    from three_walls.model.report import Report
    from three_walls.pipeline import analyze

__version__ = VERSION

__all__ = ["Report", "ThreeWallsError", "__version__", "analyze"]


def __getattr__(name: str) -> Any:
    """Imports what is slow to import on first use, so that the command line can be interrupted from the start."""
    if name == "analyze":
        from three_walls.pipeline import analyze

        return analyze
    if name == "Report":
        from three_walls.model.report import Report

        return Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
