"""NCCL's variables that take a path away or force its choice: ``tables/nccl-transport.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from three_walls.lib.load_documents import Text, load_table
from three_walls.lib.resources import TABLES_DIR

MINIMUM_LINK_FRACTION = 0.25
"""Of a link's bandwidth: communication that stays below it does not use the link. On H200s the fastest token exchange
of a run reaches 0.66 to 0.78 of NVLink's bandwidth in one direction (NCCL), or 0.49 (DeepEP); with peer-to-peer
disabled 0.06 to 0.07. PCIe, which carries what goes through host memory, has 0.14 of it on Hopper and 0.25 on a Grace
superchip."""
Path = Literal["nvlink", "network"]


@dataclass(frozen=True, slots=True)
class DisablingVariable:
    """With one of ``values`` (case does not count) NCCL does not use ``path``."""

    variable: Text
    path: Path
    values: tuple[Text, ...]
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True)
class ForcingVariable:
    """Replaces NCCL's own choice, whatever its value."""

    variable: Text
    reason: Text


@dataclass(frozen=True, slots=True)
class NcclTransport:
    """``nccl-transport.yaml``."""

    disabling: tuple[DisablingVariable, ...]
    forcing: tuple[ForcingVariable, ...]


@cache
def nccl_transport() -> NcclTransport:
    """The table that ships with the program."""
    return load_table(TABLES_DIR / "nccl-transport.yaml", NcclTransport)
