"""Which NVTX ranges tell whose collective runs: ``tables/collective-owners.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict

DATA_PARALLEL, TENSOR_PARALLEL, TOKENS = OWNERS = ("data_parallel", "tensor_parallel", "tokens")


@dataclass(frozen=True, slots=True)
class OwnerTexts:
    """Ranges whose text holds one of ``texts`` surround collectives of ``owner``."""

    owner: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectiveOwners:
    """``rows`` in the order in which they count. Above ``maximum_open_fraction`` of the step in collectives of unknown
    owner nothing is said of data and tensor parallelism."""

    rows: tuple[OwnerTexts, ...]
    maximum_open_fraction: float


def load_collective_owners(path: Path) -> CollectiveOwners:
    """The table of ``path``. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("owners", "maximum_open_fraction"))
    rows = []
    for node in problems.items(top.get("owners")):
        row = problems.fields(node, ("owner", "texts", "reason"))
        problems.text(row.get("reason"))
        texts = tuple(problems.text(one) for one in problems.items(row.get("texts")))
        rows.append(OwnerTexts(problems.choice(row.get("owner"), OWNERS), texts))
    limit = problems.fields(top.get("maximum_open_fraction"), ("value", "reason"))
    problems.text(limit.get("reason"))
    most = problems.number(limit.get("value"), 0.0, 1.0)
    problems.raise_if_any()
    return CollectiveOwners(tuple(rows), most)


@cache
def collective_owners() -> CollectiveOwners:
    """The table that ships with the rules."""
    return load_collective_owners(TABLES_DIR / "collective-owners.yaml")
