"""Which keys of a saved configuration tell its Megatron-Bridge release: ``tables/bridge-releases.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict

BRIDGE_RELEASES_FILE = TABLES_DIR / "bridge-releases.yaml"


@dataclass(frozen=True, slots=True)
class BridgeRelease:
    """One release: paths (or sections) that are new in it, and paths that the next one no longer has."""

    name: str
    came_with: tuple[str, ...]
    last_with: tuple[str, ...]


@cache
def bridge_releases() -> tuple[BridgeRelease, ...]:
    """The releases that ship with the program, oldest first."""
    return load_bridge_releases(BRIDGE_RELEASES_FILE)


def load_bridge_releases(path: Path) -> tuple[BridgeRelease, ...]:
    """The releases in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("releases",))
    releases = []
    for name, node in problems.entries(top.get("releases")).items():
        entry = problems.fields(node, (), ("came_with", "last_with"))
        releases.append(
            BridgeRelease(name, problems.texts(entry.get("came_with")), problems.texts(entry.get("last_with")))
        )
    problems.raise_if_any()
    return tuple(releases)
