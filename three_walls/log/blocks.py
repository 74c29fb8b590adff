"""Blocks: lines that belong together, written by one process while others write in between."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from three_walls.knowledge.log_grammar import BlockRow, LogGrammar
from three_walls.log.lines import SourceLine

MOST_STRANGE_LINES = 200
"""Lines in a row of the same process that do not belong to its open block: after as many it was never closed."""
MOST_FOREIGN_LINES = 100_000
"""The same for other processes' lines."""
MOST_ENTRIES = 20_000


@dataclass(slots=True)
class Block:
    """A block as far as it was read: (name, value) pairs, names empty where lines have none."""

    row: BlockRow
    origin: str
    entries: list[tuple[str, str]] = field(default_factory=list)
    section: str = ""
    strange: int = 0
    foreign: int = 0
    is_closed: bool = False

    def read(self, line: SourceLine) -> None:
        """Takes ``line`` if it belongs here; closes the block where it ends."""
        if line.origin != self.origin:
            self.foreign += 1
            self.is_closed = self.foreign > MOST_FOREIGN_LINES
            return
        self.foreign = 0
        if self.row.section and (heading := self.row.section.match(line.text)):
            self.section, self.strange = f"{heading['section']}.", 0
        elif match := self.row.line.match(line.text):
            groups = match.groupdict()
            self.entries.append((self.section + (groups.get("name") or ""), groups["value"]))
            self.strange = 0
            self.is_closed = len(self.entries) >= MOST_ENTRIES
        elif (self.entries or self.row.repeats) and self.row.closes.search(line.text):
            self.is_closed = True
        elif line.text.strip():
            self.strange += 1
            self.is_closed = self.strange > MOST_STRANGE_LINES


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
