"""What the lines and timers of a training log look like: ``tables/log-lines.yaml`` and ``tables/log-timers.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator

from three_walls.lib.load_documents import Loc, Pattern, Text, load_table, raise_contradictions
from three_walls.lib.resources import TABLES_DIR
from three_walls.log.training_log import TimerKind

Unit = Literal["ms", "s", "MiB", "GB", "size", "billions", "count", "number", "text"]
"""Unit in the log. ms and s are read as ns, MiB, GB and size ("1.54 GiB") as bytes, billions as a count."""
EventKind = Literal[
    "training_start",
    "training_end",
    "evaluation",
    "checkpoint",
    "checkpoint_saved",
    "dispatcher",
    "overlap",
    "override_skipped",
    "cuda_graphs",
    "failure",
    "memory_exhausted",
    "memory_snapshot",
]
EVENT_KINDS: tuple[str, ...] = get_args(EventKind)
"""Kinds of lines that are kept as events: their text and, where they give one, the iteration."""
LineKind = Literal[
    EventKind,
    "iteration",
    "step_time",
    "memory",
    "theoretical_memory",
    "parameters",
    "parameters_per_rank",
    "layout",
    "out_of_memory",
    "version",
    "progress",
    "straggler",
    "straggler_detector",
    "config_object",
]
BlockKind = Literal["argument_block", "non_default_settings", "config_dump", "timers", "rank_timers", "traceback"]


def _encode(anchor: object) -> bytes:
    """Anchors are searched as bytes, so they must be the same in every encoding of a file."""
    if not (isinstance(anchor, str) and anchor and anchor.isascii() and anchor.isprintable()):
        raise ValueError(f"an anchor is searched as bytes: expected printable ASCII, found {anchor!r}")
    return anchor.strip().encode()


Anchor = Annotated[bytes, BeforeValidator(_encode)]
"""Text that every line of a row contains; only lines with an anchor are parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What launchers and loggers put before a line."""

    pattern: Pattern
    """Matched at the start of the line."""
    origin: bool = False
    """Whether the prefix identifies the process that wrote the line."""
    reason: Text


@dataclass(frozen=True, slots=True)
class ListedValue:
    """A value of a list "label: value | label: value |"."""

    label: Text
    unit: Unit


@dataclass(frozen=True, slots=True)
class LinePart:
    """A value with a pattern of its own, which is searched in the line."""

    pattern: Pattern
    """Its first group is the value."""
    unit: Unit


@dataclass(frozen=True, kw_only=True)
class LineRow:
    """One kind of line. ``values``, ``fields`` and ``parts`` name its values and state their units."""

    kind: LineKind
    anchor: Anchor
    pattern: Pattern
    """Searched in the line without its prefixes."""
    values: Mapping[str, Unit] = field(default_factory=dict)
    """Named group of the pattern -> unit."""
    fields: Mapping[str, ListedValue] = field(default_factory=dict)
    """Name -> value of the list in the pattern's group ``fields``."""
    is_closed: bool = False
    """Whether a listed value counts only if another ``|`` follows, so that no truncated value is read."""
    parts: Mapping[str, LinePart] = field(default_factory=dict)
    ends_line: bool = False
    """Whether the last value ends the line, so that a truncated line would look complete."""
    required: frozenset[Text] = frozenset()
    """Names of values; a line that lacks one is torn and not read."""
    reason: Text
    source: Text | None = None
    """Where the format string of the line is (rules/sources.yaml)."""

    @cached_property
    def names_by_label(self) -> Mapping[str, tuple[str, str]]:
        """Label of a listed value -> (name, unit)."""
        return {listed.label: (name, listed.unit) for name, listed in self.fields.items()}

    def __post_init__(self) -> None:
        names = {*self.values, *self.fields, *self.parts}
        wrong: list[tuple[Loc, str]] = [
            (("values", name), f"value {name} is no group of the pattern")
            for name in self.values
            if name not in self.pattern.groupindex
        ]
        wrong += [
            (("required",), f"required {name} is neither a value nor a field nor a part")
            for name in sorted(self.required - names)
        ]
        raise_contradictions(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """Several lines of one process that belong together."""

    kind: BlockKind
    anchor: Anchor
    opens: Pattern
    line: Pattern
    closes: Pattern
    """Ends the block, but not before its first line was read."""
    section: Pattern | None = None
    """A heading inside the block; its group ``section`` is put before the names. Other groups are values."""
    repeats: bool = False
    """Whether a run prints the block repeatedly; of any other block only the first is read."""
    keeps_last: bool = False
    """Whether only the last entry counts."""
    counts_up: bool = False
    """Whether names are numbers that grow within a section, so that one that does not shows a torn heading."""
    patience: int = 200
    """Consecutive lines of the same process that do not belong to the block; after more, it is over."""
    reason: Text
    source: Text | None = None


@dataclass(frozen=True)
class LogGrammar:
    """``log-lines.yaml``."""

    prefixes: tuple[Prefix, ...]
    lines: tuple[LineRow, ...]
    blocks: tuple[BlockRow, ...]

    @cached_property
    def any_prefix(self) -> re.Pattern[str]:
        """Matches where any of ``prefixes`` does. Most lines have none, and one search is cheaper than ten."""
        return re.compile("|".join(f"(?:{prefix.pattern.pattern})" for prefix in self.prefixes) or "(?!)")

    @property
    def anchors(self) -> tuple[bytes, ...]:
        """The anchors of lines and blocks, each once."""
        return tuple(dict.fromkeys([*(row.anchor for row in self.lines), *(row.anchor for row in self.blocks)]))


@dataclass(frozen=True, slots=True)
class TimerRow:
    """Timers whose whole name matches ``pattern`` measure ``kind``."""

    pattern: Pattern
    kind: Literal[TimerKind.WORK, TimerKind.EXCHANGE, TimerKind.STEP, TimerKind.OUTSIDE]
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True)
class LogTimers:
    """``log-timers.yaml``."""

    timers: tuple[TimerRow, ...]
    """In order of precedence."""

    def kind_of(self, name: str) -> TimerKind:
        """What the timer ``name`` measures; ``other`` if no row matches."""
        return next((row.kind for row in self.timers if row.pattern.fullmatch(name)), TimerKind.OTHER)


@cache
def log_grammar() -> LogGrammar:
    """The grammar that ships with the program."""
    return load_table(TABLES_DIR / "log-lines.yaml", LogGrammar)


@cache
def log_timers() -> LogTimers:
    """The timers that ship with the program."""
    return load_table(TABLES_DIR / "log-timers.yaml", LogTimers)
