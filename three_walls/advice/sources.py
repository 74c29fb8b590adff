"""Where claims come from: the prefixes of ``rules/sources.yaml`` and the pointers that use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from three_walls.advice import strict_yaml
from three_walls.advice.strict_yaml import Problems

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
            return f"unknown name {pointer!r}{strict_yaml.suggest(pointer, self.names)}"
        return ""


def read_sources(path: Path, problems: Problems) -> Mapping[str, Source]:
    """Sources by prefix."""
    root = strict_yaml.compose(path, problems)
    if root is None:
        return {}
    return {prefix: _read_source(node, problems) for _, prefix, node in strict_yaml.entries(root, problems)}


def check_pointer(node: yaml.Node | None, problems: Problems, sources: Mapping[str, Source]) -> str:
    """The pointer at ``node``, such as ``mcore:path:12-14``, after checking prefix and form."""
    pointer = strict_yaml.text(node, problems)
    if node is None or not pointer:
        return pointer
    prefix, _, rest = pointer.partition(":")
    if prefix not in sources:
        problems.add(node, f"unknown source {prefix}{strict_yaml.suggest(prefix, sources)}")
    elif complaint := sources[prefix].complaint_about(rest):
        problems.add(node, f"source {prefix}: {complaint}")
    return pointer


def _read_source(node: yaml.Node, problems: Problems) -> Source:
    found = strict_yaml.fields(node, problems, ("what",), ("repository", "commit", "path", "names"))
    names = tuple(strict_yaml.text(item, problems) for item in strict_yaml.items(found.get("names"), problems))
    if ("repository" in found) == bool(names):
        problems.add(node, "a source has either a repository with its commit, or names")
    if ("repository" in found) != ("commit" in found):
        problems.add(node, "repository and commit go together")
    return Source(
        what=strict_yaml.text(found.get("what"), problems),
        repository=strict_yaml.text(found.get("repository"), problems),
        commit=strict_yaml.text(found.get("commit"), problems),
        path=strict_yaml.text(found.get("path"), problems),
        names=names,
    )
