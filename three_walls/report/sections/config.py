"""The run's configuration, each setting with its source."""

from __future__ import annotations

from typing import NamedTuple

from three_walls.lib.text import format_setting
from three_walls.megatron.settings.run_config import ConfigConflict, ConfigValue
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Cell, Column, Inline, Items, Section, Table, Terminal, Text

_DEFAULTS = ("Megatron-LM default", "Megatron Core default", "Megatron-Bridge default")
"""Sources of values that nobody set."""


class SettingRow(NamedTuple):
    key: str
    kind: str
    """``config`` or ``env``."""
    found: ConfigValue


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
            Column("Setting", ROW, _name),
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


def _name(row: SettingRow) -> Cell:
    name = Text(row.key, "code")
    return (name, Text("environment", "badge")) if row.kind == "env" else name


def _describe_conflict(conflict: ConfigConflict) -> tuple[Inline, ...]:
    pieces: list[Inline] = [Text(conflict.key, "code")]
    for found in conflict.values:
        pieces += [Text(format_setting(found.value), "code"), Text(found.source, "muted")]
    return tuple(pieces)
