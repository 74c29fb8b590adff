"""Whose collective an NCCL kernel is, by the NVTX ranges around its launch: ``tables/collective-owners.yaml``."""

from __future__ import annotations

from functools import cache
from typing import Literal

from three_walls.resources import TABLES_DIR
from three_walls.tables.loader import Row, Text, load_table
from three_walls.tables.thresholds import Fraction

DATA_PARALLEL, TENSOR_PARALLEL, TOKENS = "data_parallel", "tensor_parallel", "tokens"


class OwnerTexts(Row):
    """Ranges that contain one of ``texts`` surround collectives of ``owner``."""

    owner: Literal["data_parallel", "tensor_parallel", "tokens"]
    texts: tuple[Text, ...]
    reason: Text
    """Who calls the collective."""


class CollectiveOwners(Row):
    """``collective-owners.yaml``."""

    owners: tuple[OwnerTexts, ...]
    """In order of precedence."""
    maximum_open_fraction: Fraction
    """Of the step: with more time in collectives of unknown owner, no data- or tensor-parallel time is stated."""


@cache
def collective_owners() -> CollectiveOwners:
    """The table that ships with the program."""
    return load_table(TABLES_DIR / "collective-owners.yaml", CollectiveOwners)
