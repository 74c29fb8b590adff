"""What the timers of a training log measure: ``tables/log-timers.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.model.training_log import TIMER_KINDS, TimerKind
from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict

LOG_TIMERS_FILE = TABLES_DIR / "log-timers.yaml"


@dataclass(frozen=True, slots=True)
class LogTimers:
    """Rows in the order in which they count."""

    rows: tuple[tuple[re.Pattern[str], TimerKind], ...]

    def kind_of(self, name: str) -> TimerKind:
        """What timer ``name`` measures; ``other`` where no row tells."""
        return next((kind for pattern, kind in self.rows if pattern.fullmatch(name)), TimerKind.OTHER)


def load_log_timers(path: Path) -> LogTimers:
    """The table of ``path``. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("timers",))
    rows = []
    for node in problems.items(top.get("timers")):
        row = problems.fields(node, ("pattern", "kind", "reason", "source"))
        problems.text(row.get("reason"))
        problems.text(row.get("source"))
        kind = problems.choice(row.get("kind"), TIMER_KINDS)
        rows.append((problems.pattern(row.get("pattern")), kind))
    problems.raise_if_any()
    return LogTimers(tuple((pattern, TimerKind(kind)) for pattern, kind in rows))


@cache
def log_timers() -> LogTimers:
    """The table that ships with the rules."""
    return load_log_timers(LOG_TIMERS_FILE)
