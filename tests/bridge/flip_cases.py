"""Seeded flips: one to three settings of a recipe that nobody chose, each with another value of its type.

Half of the settings are those that some constraint compares, with the texts that constraints compare them with among
their values. The others are any that the release has: what no constraint knows is met, too. The same seed gives the
same flips.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tests.bridge.override_cases import OverrideCase
from tests.bridge.session_cases import ENGINES, GPUS
from three_walls.bridge.constraints import compared_names, constraint_table
from three_walls.tables.bridge_releases import BridgeSchema, FieldType, bridge_schema

NUMBERS: dict[str, tuple[object, ...]] = {"int": (0, 1, 2, 3, 4, 8, 16, 100), "float": (0.0, 0.1, 0.5, 1.0)}
WORDS: dict[str, tuple[object, ...]] = {
    "bool": ("true", "false"),
    "null": ("null",),
    "dtype": ("torch.bfloat16", "torch.float32"),
}
LISTS: dict[str, tuple[object, ...]] = {"list[int]": ("[]", "[1]", "[0,1]"), "list[str]": ("[]",)}
_TEXT = re.compile(r"'(\w+)'")


def make_flips(release: str, seed: int, count: int, bases: int) -> list[OverrideCase]:
    """``count`` cases for ``bases`` base configurations."""
    source = random.Random(f"flips {release} {seed}")
    schema = bridge_schema(release)
    values = {path: _values_of(path, schema) for path in schema.paths()}
    compared = [path for path, found in values.items() if found and _is_compared(path)]
    others = [path for path, found in values.items() if found and not _is_compared(path)]
    return [_flip(source, (compared, others), values, bases) for _ in range(count)]


def _flip(
    source: random.Random, pools: Sequence[list[str]], values: dict[str, tuple[object, ...]], bases: int
) -> OverrideCase:
    pool = source.choice(pools)
    paths = source.sample(pool, source.randint(1, 3))
    return OverrideCase(
        "compared" if pool is pools[0] else "any other",
        source.randrange(bases),
        tuple(f"{path}={source.choice(values[path])}" for path in paths),
        replace(source.choice(GPUS), transformer_engine=source.choice(ENGINES)),
    )


def _is_compared(path: str) -> bool:
    return path in compared_names() or path.removeprefix("model.") in compared_names()


def _values_of(path: str, schema: BridgeSchema) -> tuple[object, ...]:
    """Values of the setting's type; none of a type of which nothing can be made without knowing more."""
    kind: FieldType | None = schema.find(path)
    assert kind is not None
    if kind.values:
        return (*kind.values, *(("null",) if "null" in kind.kinds else ()))
    made = {**NUMBERS, **WORDS, **LISTS}
    found = [value for name in kind.kinds for value in made.get(name, ())]
    texts = _texts_of(path.removeprefix("model.")) if "str" in kind.kinds else ()
    return tuple(found + sorted(texts)) if found != ["null"] or texts else ()


@cache
def _texts_of(name: str) -> frozenset[str]:
    """The texts that stand in constraints on the setting ``name``."""
    rules = (f"{row.when or ''} {row.needs}" for row in constraint_table().constraints.values())
    return frozenset(text for rule in rules if name in re.findall(r"[\w.]+", rule) for text in _TEXT.findall(rule))
