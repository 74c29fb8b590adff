"""The thresholds of the verdict, from where they are read: ``three_walls/tables/thresholds.py``."""

from three_walls.tables.thresholds import VerdictThresholds as Thresholds
from three_walls.tables.thresholds import default_thresholds

__all__ = ["Thresholds", "default_thresholds"]
