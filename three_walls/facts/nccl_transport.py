"""NCCL's variables that take a path away or force its choice: ``tables/nccl-transport.yaml``."""

from __future__ import annotations

from functools import cache
from typing import Literal

from three_walls.lib.load_documents import Row, Text, load_table
from three_walls.lib.resources import TABLES_DIR

Path = Literal["nvlink", "network"]


class DisablingVariable(Row):
    """With one of ``values`` (case does not count) NCCL does not use ``path``."""

    variable: Text
    path: Path
    values: tuple[Text, ...]
    reason: Text
    source: Text


class ForcingVariable(Row):
    """Replaces NCCL's own choice, whatever its value."""

    variable: Text
    reason: Text


class NcclTransport(Row):
    """``nccl-transport.yaml``."""

    disabling: tuple[DisablingVariable, ...]
    forcing: tuple[ForcingVariable, ...]


@cache
def nccl_transport() -> NcclTransport:
    """The table that ships with the program."""
    return load_table(TABLES_DIR / "nccl-transport.yaml", NcclTransport)
