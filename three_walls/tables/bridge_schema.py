"""What a Megatron-Bridge release lets a configuration hold: ``tables/generated/bridge/<release>.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from three_walls.model.config import ConfigData, ConfigScalar
from three_walls.resources import GENERATED_DIR
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

BRIDGE_DIR = GENERATED_DIR / "bridge"
MAIN = "main"
_KINDS = ("bool", "int", "float", "str", "null", "any", "dict", "dtype", "callable")
_RELEASE = re.compile(r"v?(\d+)(?:\.(\d+))?")
_AFTER_EVERY_RELEASE = (0, 7)
"""What main counts as; raise it with the schema of main."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """What one field takes: kinds of values (``bool``, ``list[str]``, ``enum:AttnBackend``), and which texts."""

    kinds: tuple[str, ...]
    values: tuple[ConfigScalar, ...]
    """What a text or number must be; empty: anything."""
    has_default: bool
    default: ConfigData


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the configuration, ``model`` for example, by the names of its fields."""

    itself: FieldType
    fields: Mapping[str, FieldType]


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum whose members an override spells by class and number."""

    module: str
    members: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BridgeSchema:
    """One release."""

    release: str
    core: str
    enums: Mapping[str, EnumType]
    sections: Mapping[str, Section]

    def find(self, path: str) -> FieldType | None:
        """The type of ``section`` or ``section.field``; ``None`` where the release has no such field."""
        name, _, field = path.partition(".")
        section = self.sections.get(name)
        if section is None:
            return None
        return section.fields.get(field) if field else section.itself

    def paths(self) -> tuple[str, ...]:
        """Every ``section.field``."""
        return tuple(f"{name}.{field}" for name, section in self.sections.items() for field in section.fields)


def release_number(version: str) -> tuple[int, int]:
    """(major, minor) of a version: patch releases change no key. ``main`` is after every release."""
    match = _RELEASE.match(version)
    return _AFTER_EVERY_RELEASE if match is None else (int(match[1]), int(match[2] or 0))


@cache
def known_releases() -> tuple[str, ...]:
    """Releases that there is a schema of, oldest first."""
    found = (path.stem for path in BRIDGE_DIR.glob("*.yaml") if path.stem == MAIN or _RELEASE.match(path.stem))
    return tuple(sorted(found, key=release_number))


def nearest_release(version: str) -> str:
    """The known release that answers for ``version``: the last one that is not newer, else the oldest."""
    not_newer = [one for one in known_releases() if release_number(one) <= release_number(version)]
    return not_newer[-1] if not_newer else known_releases()[0]


@cache
def bridge_schema(version: str) -> BridgeSchema:
    """The schema that answers for ``version``."""
    return load_bridge_schema(BRIDGE_DIR / f"{nearest_release(version)}.yaml")


def load_bridge_schema(path: Path) -> BridgeSchema:
    """The schema in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("bridge", "core", "enums", "sections"))
    schema = BridgeSchema(
        release=problems.text(top.get("bridge")),
        core=problems.text(top.get("core")),
        enums={name: _read_enum(node, problems) for name, node in problems.entries(top.get("enums")).items()},
        sections={name: _read_section(node, problems) for name, node in problems.entries(top.get("sections")).items()},
    )
    problems.raise_if_any()
    return schema


def _read_section(node: Node, problems: Problems) -> Section:
    found = problems.fields(node, ("itself", "fields"))
    fields = {name: _read_field(one, problems) for name, one in problems.entries(found.get("fields")).items()}
    return Section(_read_field(found.get("itself"), problems), MappingProxyType(fields))


def _read_field(node: Node | None, problems: Problems) -> FieldType:
    found = problems.fields(node, ("type",), ("values", "default"))
    kinds = problems.texts(found.get("type"))
    for kind in kinds:
        if kind.removeprefix("list[").rstrip("]") not in _KINDS and not re.search(r"(enum|object):\w", kind):
            problems.add(found["type"], f"unknown kind {kind}")
    return FieldType(
        kinds=kinds,
        values=tuple(problems.scalar(one) for one in problems.items(found.get("values"))),
        has_default="default" in found,
        default=problems.value(found.get("default")),
    )


def _read_enum(node: Node, problems: Problems) -> EnumType:
    found = problems.fields(node, ("module", "members"))
    members = problems.entries(found.get("members"))
    return EnumType(
        module=problems.text(found.get("module")),
        members=MappingProxyType({name: problems.integer(one) for name, one in members.items()}),
    )
