"""What scrubbing an export left out: names and counts only, never a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """One export that was scrubbed."""

    source: Path
    target: Path
    source_bytes: int
    target_bytes: int
    tables: Mapping[str, int]
    """Tables left out, with their rows."""
    columns: tuple[str, ...]
    """Columns left out of tables that stay."""
    pairs: Mapping[str, int]
    """Rows left out of name/value tables."""
    strings: int
    """Strings left out of StringIds, ``blocks`` of them environments of whole processes."""
    blocks: int
    variables: tuple[str, ...]
    """Names of the environment variables left out."""
    arguments: int
    """Words of the command line left out."""
    texts: Mapping[str, int]
    """Different texts that were replaced, by what stands for them (``range``: range-1, range-2, ...)."""
    host: str | None
    """What the machine is called now."""
    searched: int
    """How many removed values were looked for in the bytes of the new file; none was found."""
