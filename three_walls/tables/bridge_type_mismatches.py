"""What becomes of a value that does not fit its field: measured per release, and reviewed where Bridge takes it.

``tables/generated/bridge/type-mismatches/`` says what Megatron-Bridge refuses (``tools/bridge_type_mismatches.py``);
``tables/bridge-accepted-values.yaml`` says when a value that it takes strikes afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from three_walls.model.failure_mode import FailureMode
from three_walls.resources import TABLES_DIR
from three_walls.tables.bridge_schema import BRIDGE_DIR, bridge_schema, known_releases, nearest_release
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

KINDS = ("word", "text", "integer", "fraction", "flag", "list", "element", "mapping", "nothing")
"""Kinds of values that do not fit a field: ``word`` is a text (or number) that is none of those it knows, ``element``
an element of the wrong kind in a list, ``nothing`` is
null, the others a value of this kind where the field takes another."""
ACCEPTED_VALUES = TABLES_DIR / "bridge-accepted-values.yaml"
_LATER = (FailureMode.FAILS_AT_BUILD, FailureMode.IGNORED)


@dataclass(frozen=True, slots=True)
class MeasuredMismatches:
    """What one release refuses, by path: kinds that it refused in every tried configuration, and in some."""

    refused: Mapping[str, frozenset[str]]
    sometimes: Mapping[str, frozenset[str]]
    not_tried: frozenset[str]

    def is_taken(self, path: str, kind: str) -> bool | None:
        """Whether the release takes such a value there; ``None`` where it depends, or was not tried."""
        if kind in self.refused.get(path, ()):
            return False
        return None if kind in self.sometimes.get(path, ()) or path in self.not_tried else True


@dataclass(frozen=True, slots=True)
class AcceptedValue:
    """When a value that Bridge takes strikes, and where upstream decides it."""

    failure_mode: FailureMode
    source: str


@cache
def measured_mismatches(version: str) -> MeasuredMismatches:
    """What is measured of the release that answers for ``version``."""
    return load_type_mismatches(BRIDGE_DIR / "type-mismatches" / f"{nearest_release(version)}.yaml")


@cache
def accepted_values() -> Mapping[tuple[str, str], AcceptedValue]:
    """By path and kind, what becomes of values that Bridge takes, as far as reviewed."""
    return load_accepted_values(ACCEPTED_VALUES)


def load_type_mismatches(path: Path) -> MeasuredMismatches:
    """The measurement in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(
        load_strict(path, problems), ("bridge", "configurations", "refused", "sometimes", "not_tried")
    )
    found = MeasuredMismatches(
        refused=_kinds_by_path(top.get("refused"), problems),
        sometimes=_kinds_by_path(top.get("sometimes"), problems),
        not_tried=frozenset(problems.texts(top.get("not_tried"))),
    )
    problems.raise_if_any()
    return found


def load_accepted_values(path: Path) -> Mapping[tuple[str, str], AcceptedValue]:
    """The reviewed table in ``path``; raises RuleBaseError that lists every error."""
    from_sources: dict[tuple[str, str], AcceptedValue] = {}
    problems = Problems()
    for name, node in problems.entries(load_strict(path, problems)).items():
        if not any(bridge_schema(release).find(name) for release in known_releases()):
            problems.add(node, f"no release has a field {name}")
        found = problems.fields(node, ("kinds", "failure_mode", "source"))
        failure_mode = problems.choice(found.get("failure_mode"), _LATER)
        for kind in _read_kinds(found.get("kinds"), problems):
            source = problems.text(found.get("source"))
            from_sources[name, kind] = AcceptedValue(FailureMode(failure_mode or FailureMode.UNKNOWN), source)
    problems.raise_if_any()
    return MappingProxyType(from_sources)


def _kinds_by_path(node: Node | None, problems: Problems) -> Mapping[str, frozenset[str]]:
    return {name: frozenset(_read_kinds(kinds, problems)) for name, kinds in problems.entries(node).items()}


def _read_kinds(node: Node | None, problems: Problems) -> tuple[str, ...]:
    return tuple(kind for item in problems.items(node) if (kind := problems.choice(item, KINDS)) in KINDS)
