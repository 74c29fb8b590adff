"""A bar in a terminal table: blocks on a terminal, ASCII elsewhere, where it must survive logs and pastes."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_COLUMNS = 30


@dataclass(frozen=True, slots=True)
class Bar:
    """``fraction`` (0 to 1) of the full length, at least one character."""

    fraction: float
    colour: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        block = "\u2588" if console.is_terminal and not options.ascii_only else "#"
        yield Text(block * max(1, round(self.fraction * _COLUMNS)), style=self.colour)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_COLUMNS, _COLUMNS)
