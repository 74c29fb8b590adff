"""Where claims come from: the prefixes of ``rules/sources.yaml`` and the pointers that use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.yaml_nodes import Node

_LINES_OF_FILE = re.compile(r"[\w./-]+:\d+(-\d+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """What one prefix stands for: a repository at a commit, or a closed list of names."""

    what: str
    repository: str = ""
    commit: str = ""
    path: str = ""
    names: tuple[str, ...] = ()

    def complaint_about(self, pointer: str) -> str:
        """Why ``pointer`` (the part after the prefix) is no pointer into this source; empty if it is."""
        if self.repository:
            if not _LINES_OF_FILE.fullmatch(pointer):
                return f"expected path:line or path:line-line, found {pointer!r}"
            return ""
        if pointer not in self.names:
            return f"unknown name {pointer!r}{suggest(pointer, self.names)}"
        return ""


def read_sources(path: Path, problems: Problems) -> Mapping[str, Source]:
    """Sources by prefix."""
    root = load_strict(path, problems)
    return {prefix: _read_source(node, problems) for prefix, node in problems.entries(root).items()}


def check_pointer(node: Node | None, problems: Problems, sources: Mapping[str, Source]) -> str:
    """The pointer at ``node``, such as ``mcore:path:12-14``, after checking prefix and form."""
    pointer = problems.text(node)
    if node is None or not pointer:
        return pointer
    prefix, _, rest = pointer.partition(":")
    if prefix not in sources:
        problems.add(node, f"unknown source {prefix}{suggest(prefix, sources)}")
    elif complaint := sources[prefix].complaint_about(rest):
        problems.add(node, f"source {prefix}: {complaint}")
    return pointer


def _read_source(node: Node, problems: Problems) -> Source:
    found = problems.fields(node, ("what",), ("repository", "commit", "path", "names"))
    names = tuple(problems.text(item) for item in problems.items(found.get("names")))
    if ("repository" in found) == bool(names):
        problems.add(node, "a source has either a repository with its commit, or names")
    if ("repository" in found) != ("commit" in found):
        problems.add(node, "repository and commit go together")
    return Source(
        what=problems.text(found.get("what")),
        repository=problems.text(found.get("repository")),
        commit=problems.text(found.get("commit")),
        path=problems.text(found.get("path")),
        names=names,
    )
