"""Which NVTX ranges tell whose collective runs: ``rules/collective-owners.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.knowledge.strict_yaml import Problems, load_strict
from three_walls.resources import RULES_DIR

DATA_PARALLEL, TENSOR_PARALLEL, TOKENS = OWNERS = ("data_parallel", "tensor_parallel", "tokens")


@dataclass(frozen=True, slots=True)
class OwnerTexts:
    """Ranges whose text holds one of ``texts`` surround collectives of ``owner``."""

    owner: str
    texts: tuple[str, ...]


def load_collective_owners(path: Path) -> tuple[OwnerTexts, ...]:
    """The table in order. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("owners",))
    rows = []
    for node in problems.items(top.get("owners")):
        row = problems.fields(node, ("owner", "texts", "because"))
        problems.text(row.get("because"))
        texts = tuple(problems.text(one) for one in problems.items(row.get("texts")))
        rows.append(OwnerTexts(problems.choice(row.get("owner"), OWNERS), texts))
    problems.raise_if_any()
    return tuple(rows)


@cache
def collective_owners() -> tuple[OwnerTexts, ...]:
    """The table that ships with the rules."""
    return load_collective_owners(RULES_DIR / "collective-owners.yaml")
