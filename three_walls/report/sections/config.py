"""The run's settings with their sources, and how they differ from those of the nearest recipe or of another run."""

from __future__ import annotations

from typing import Any, NamedTuple

from three_walls.bridge.tuned_recipes import BATCH_SIZE, BENCHMARK_SETTING, RecipeDifference
from three_walls.lib.text import count_of, format_count, format_setting
from three_walls.megatron.settings.run_config import ConfigConflict, ConfigValue
from three_walls.report.comparison import Pair
from three_walls.report.report import Report
from three_walls.report.section import ROW, Block, Cell, Column, Inline, Items, Note, Section, Table, Terminal, Text
from three_walls.report.sections.history import describe_trial

_DEFAULTS = ("Megatron-LM default", "Megatron Core default", "Megatron-Bridge default")
"""Sources of values that nobody set."""
_SHOWN_SETTINGS = 12
MARK_MEANINGS = {
    BENCHMARK_SETTING: "not for a production run",
    BATCH_SIZE: "changes what the model learns, or how the batch is split",
}


class SettingRow(NamedTuple):
    key: str
    kind: str
    """``config`` or ``env``."""
    setting: ConfigValue


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
            Column("Value", lambda row: format_setting(row.setting.value), role="code"),
            Column("Source", "setting.source", role="muted", width="wide"),
        )
        blocks.append(
            Table(
                "config",
                columns,
                rows,
                anchor=lambda row: f"setting-{row.key}",
                is_default=lambda row: row.setting.source in _DEFAULTS,
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
    for setting in conflict.values:
        pieces += [Text(format_setting(setting.value), "code"), Text(setting.source, "muted")]
    return tuple(pieces)


def recipe(report: Report) -> Section | None:
    """The settings that differ, or why no recipe is near."""
    known = report.known_good_recipe
    if known is None:
        reason = report.no_recipe_reason
        return Section("recipe", "Known-good recipe", (), link="Recipe", empty=f"None: {reason}") if reason else None
    columns = (
        SETTING,
        Column("This run", "run", lambda value: Text(format_setting(value), "from")),
        Column("Recipe", "recipe", lambda value: Text(format_setting(value), "code")),
        Column("", ROW, _remark),
    )
    unknown = f", {format_count(known.unknown_count)} unknown in the run" if known.unknown_count else ""
    return Section(
        "recipe",
        "Known-good recipe",
        (
            Note((Text(known.name, "code"), Text(known.source, "source")), "Nearest recipe:"),
            Note(known.distance_note),
            Table("recipe", columns, known.differences),
            Note(f"{format_count(known.same_count)} settings are the same{unknown}.", role="muted"),
        ),
        lead="How the run differs from NVIDIA's nearest benchmark recipe. Context for the plan, not a promise: the "
        "recipe was fast with forced expert balance and mock data, and its parallel sizes suit its number of GPUs.",
        link="Recipe",
        is_folded=True,
    )


def _remark(row: RecipeDifference) -> Cell:
    pieces = []
    if row.in_plan:
        pieces.append(Text("in the plan", "badge"))
    if row.mark:
        pieces += [Text(row.mark, "badge warn"), Text(MARK_MEANINGS[row.mark], "muted")]
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
