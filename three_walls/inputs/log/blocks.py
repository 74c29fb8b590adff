"""Blocks: lines of one process that belong together, while other processes write in between."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from three_walls.inputs import limits
from three_walls.inputs.log.lines import SourceLine
from three_walls.model.training_log import LogIteration
from three_walls.tables.log_lines import BlockRow, LogGrammar


@dataclass(slots=True)
class Block:
    """A block as far as it was read: (name, value) pairs, names empty where lines have none."""

    row: BlockRow
    origin: str
    after: LogIteration | None = None
    """The iteration line before it of the same process."""
    entries: list[tuple[str, str]] = field(default_factory=list)
    section: str = ""
    number: int = -1
    """The last name of the section, where names count up."""
    unexpected: int = 0
    """Lines in a row of the same process that do not belong here."""
    foreign: int = 0
    """Lines in a row of other processes."""
    is_closed: bool = False

    def read(self, line: SourceLine) -> None:
        """Takes ``line`` if it belongs here; closes the block where it ends."""
        if line.origin != self.origin:
            self.foreign += 1
            most = limits.MOST_FOREIGN_LINES_OF_PRINTS if self.row.repeats else limits.MOST_FOREIGN_LINES
            self.is_closed = self.foreign > most
            return
        self.foreign = 0
        if not line.is_ended:
            return
        if self.row.section and (heading := self.row.section.match(line.text)):
            self.section, self.number, self.unexpected = f"{heading['section']}.", -1, 0
        elif match := self.row.line.match(line.text):
            groups = match.groupdict()
            self._add(groups.get("name") or "", groups["value"])
        elif (self.entries or self.row.repeats) and self.row.closes.search(line.text):
            self.is_closed = True
        elif line.text.strip():
            self.unexpected += 1
            self.is_closed = self.unexpected > self.row.patience

    def _add(self, name: str, value: str) -> None:
        self.unexpected = 0
        if self.row.counts_up:
            if int(name) <= self.number:
                self.section = ""  # the heading of another section was torn
            self.number = int(name)
            if not self.section:
                return
        self.entries.append((self.section + name, value))
        self.is_closed = len(self.entries) >= limits.MOST_BLOCK_ENTRIES


def open_block(line: SourceLine, raw: bytes, grammar: LogGrammar, known: Collection[str]) -> Block | None:
    """The block that ``line`` opens, or None. An opening line that is an entry as well is the first one.

    ``known``: kinds of blocks that were read already; those that do not repeat are not opened again.
    """
    for row in grammar.blocks:
        if row.kind in known and not row.repeats:
            continue
        if row.anchor in raw and row.opens.search(line.text):
            block = Block(row, line.origin)
            if row.line.match(line.text):
                block.read(line)
            return block
    return None
