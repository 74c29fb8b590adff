"""three-walls: names the wall that holds a Megatron MoE training run back, and the config edits to try.

from three_walls import analyze

report = analyze("trace.sqlite")
print(report.verdict.wall, report.verdict.reason)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from three_walls.lib.errors import ThreeWallsError
    from three_walls.pipeline import analyze
    from three_walls.report.plotly_figures import plotly_figures
    from three_walls.report.report import Report
    from three_walls.tuning.tune_job import tune

    __version__: str

__all__ = ["Report", "ThreeWallsError", "__version__", "analyze", "plotly_figures", "tune"]

_MODULES = {
    "Report": "three_walls.report.report",
    "ThreeWallsError": "three_walls.lib.errors",
    "analyze": "three_walls.pipeline",
    "plotly_figures": "three_walls.report.plotly_figures",
    "tune": "three_walls.tuning.tune_job",
}


def __getattr__(name: str) -> Any:
    """Imports everything on first use, so that the command line can be interrupted before it imports anything."""
    from importlib import import_module

    if name == "__version__":
        return import_module("three_walls.lib.version").VERSION
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
