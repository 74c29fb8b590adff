"""What limits the configuration: sources that disagree, a layout that cannot be, files of another launcher."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.inputs.config.parallel_layout import find_contradictions
from three_walls.inputs.config.sources import USER, SourceSettings
from three_walls.inputs.nsys.identity import Rank
from three_walls.model.config import ConfigConflict, RunConfig
from three_walls.model.report import ReportWarning

_MOST_NAMED = 8


def warn_of_settings(
    stated: Sequence[SourceSettings], config: RunConfig, ranks: Sequence[Rank]
) -> tuple[ReportWarning, ...]:
    """``stated``: the sources beside the trace, whose own notes are passed on."""
    found = [ReportWarning("config-source", note) for source in stated for note in source.warnings]
    found += _about_launchers(stated, config)
    found += _about_conflicts(config.conflicts)
    captured = [rank.rank for rank in ranks if rank.rank_source == "environment"]
    found += [ReportWarning("layout-contradiction", sentence) for sentence in find_contradictions(config, captured)]
    return tuple(found)


def _about_launchers(stated: Sequence[SourceSettings], config: RunConfig) -> list[ReportWarning]:
    """A saved configuration or log of another launcher than the command line's is of another run."""
    dialect = config.dialect
    return [
        ReportWarning(
            "config-of-another-run",
            f"{one.source}: of {one.dialect}, but {dialect} launched the run: one run?",
        )
        for one in stated
        if one.dialect not in ("unknown", dialect)
    ]


def _about_conflicts(conflicts: Sequence[ConfigConflict]) -> list[ReportWarning]:
    """What the user sets over another source is meant so, and no warning."""
    unmeant = [conflict for conflict in conflicts if conflict.values[0].source != USER]
    if not unmeant:
        return []
    named = "; ".join(_describe(conflict) for conflict in unmeant[:_MOST_NAMED])
    more = f"; and {len(unmeant) - _MOST_NAMED} more" if len(unmeant) > _MOST_NAMED else ""
    return [
        ReportWarning(
            "config-conflict", f"sources disagree on settings, the first one named counts: {named}{more}: one run?"
        )
    ]


def _describe(conflict: ConfigConflict) -> str:
    said = ", ".join(f"{_show(value.value)} ({value.source})" for value in conflict.values)
    return f"{conflict.key} {said}"


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_show, value))}]"
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
