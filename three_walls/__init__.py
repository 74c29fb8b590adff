"""three-walls: names the wall that holds a Megatron MoE training run back, and the config edits to try.

from three_walls import analyze
report = analyze("trace.sqlite")
print(report.verdict.wall, report.verdict.because)
"""

from three_walls.pipeline import analyze
from three_walls.version import VERSION
from three_walls.vocabulary.errors import ThreeWallsError
from three_walls.vocabulary.report import Report

__version__ = VERSION

__all__ = ["Report", "ThreeWallsError", "__version__", "analyze"]
