"""The run's configuration, each setting with its source; and the settings that differ between two runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from three_walls.lib.text import count_of, format_setting
from three_walls.megatron.settings.run_config import ConfigConflict, ConfigValue
from three_walls.report.comparison import Pair
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Cell, Column, Inline, Items, Note, Section, Table, Terminal, Text
from three_walls.report.sections.history import describe_trial

_DEFAULTS = ("Megatron-LM default", "Megatron Core default", "Megatron-Bridge default")
"""Sources of values that nobody set."""
_SHOWN_SETTINGS = 12


class SettingRow(NamedTuple):
    key: str
    kind: str
    """``config`` or ``env``."""
    found: ConfigValue


def _name_setting(row: Any) -> Cell:
    """The name of a setting, of a row with ``key`` and ``kind``. An environment variable is marked as one."""
    name = Text(row.key, "code")
    return (name, Text("environment", "badge")) if row.kind == "env" else name


SETTING = Column("Setting", ROW, _name_setting)
"""The first column of a table of settings."""


def config(report: Report) -> Section:
    """Settings that sources disagree on; then all settings and environment variables, each by name."""
    run = report.config
    rows = [SettingRow(key, "config", value) for key, value in sorted(run.values.items())]
    rows += [SettingRow(key, "env", value) for key, value in sorted(run.environment.items())]
    blocks: list[Block] = []
    if report.config.conflicts:
        items = tuple(map(_describe_conflict, report.config.conflicts))
        blocks.append(Items(items, "Sources that disagree: the first value of each line is used"))
    if rows:
        columns = (
            SETTING,
            Column("Value", lambda row: format_setting(row.found.value), role="code"),
            Column("Source", "found.source", role="muted", width="wide"),
        )
        blocks.append(
            Table(
                "config",
                columns,
                rows,
                anchor=lambda row: f"setting-{row.key}",
                is_default=lambda row: row.found.source in _DEFAULTS,
            )
        )
    release = f", Megatron-Bridge {run.bridge_version}" if run.bridge_version else ""
    evidence = f" ({run.bridge_version_evidence})" if release and run.bridge_version_evidence else ""
    return Section(
        "config",
        "Configuration",
        tuple(blocks),
        lead=f"Settings of the run as far as they are known. Launched as {run.dialect}{release}{evidence}.",
        link="Config",
        is_folded=True,
        empty="Unknown: give the run's configuration with --config or --set.",
        terminal=Terminal.NEVER,
    )


def _describe_conflict(conflict: ConfigConflict) -> tuple[Inline, ...]:
    pieces: list[Inline] = [Text(conflict.key, "code")]
    for found in conflict.values:
        pieces += [Text(format_setting(found.value), "code"), Text(found.source, "muted")]
    return tuple(pieces)


def changed_settings(pair: Pair) -> Section:
    """The settings in which two runs differ, then what the plan of BEFORE predicted for them."""
    blocks: list[Block] = []
    made = [change for change in pair.settings if not change.follows]
    following = [change for change in pair.settings if change.follows]
    is_proposed, has_notes = any(change.rules for change in made), any(change.note for change in made)
    columns = (
        SETTING,
        Column("Before", "before", lambda value: Text(format_setting(value), "from")),
        Column("After", "after", lambda value: Text(format_setting(value), "to")),
        *([Column("Proposed by", ROW, lambda row: ", ".join(row.rules), role="code")] if is_proposed else []),
        *([Column("Note", "note", role="muted", width="third", in_terminal=False)] if has_notes else []),
    )
    if made:
        blocks.append(Table("settings", columns, made, terminal_rows=_SHOWN_SETTINGS))
    elif pair.settings_are_known:
        blocks.append(Note("No setting that both runs state differs."))
    if following:
        names = ", ".join(change.key for change in following)
        blocks.append(Note(f"{count_of(len(following), 'default')} differ with them: {names}.", role="muted"))
    if pair.settings_note:
        blocks.append(Note(pair.settings_note, role="muted"))
    blocks += describe_trial(pair)
    return Section(
        "settings",
        "Settings that differ",
        tuple(blocks),
        link="Settings",
        terminal=Terminal.ALWAYS,
    )
