"""The sources that rules cite: the prefixes of ``rules/sources.yaml``, and pointers such as ``mcore:path:12-14``.

:data:`Pointer` is a type for fields of the rows that read YAML. The sources that pointers may name come
from the loader's validation context: ``load_table(path, kind, {"sources": load_sources(...)})``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from three_walls.lib.load_documents import Problem, Text, raise_problems, read_table, suggest

_LINES_OF_FILE = re.compile(r"[\w./-]+:\d+(-\d+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """What one prefix stands for: a repository at a commit, or a closed list of names."""

    what: Text
    repository: Text | None = None
    commit: Text | None = None
    path: Text | None = None
    """Folder of the repository that pointers start from; the root where it is left out."""
    names: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        if (self.repository is not None) == bool(self.names):
            raise ValueError("a source has either repository and commit, or names: give one of them")
        if (self.repository is None) != (self.commit is None):
            raise ValueError("a source with a repository has its commit: give both or neither")

    def check(self, pointer: str) -> str:
        """Why ``pointer`` (the part after the prefix) does not point into this source; empty if it does."""
        if self.repository:
            if not _LINES_OF_FILE.fullmatch(pointer):
                return f"expected path:line or path:line-line, found {pointer!r}"
            return ""
        return "" if pointer in self.names else f"unknown name {pointer!r}{suggest(pointer, self.names)}"


def read_sources(path: Path, problems: list[Problem]) -> Mapping[str, Source]:
    """Sources by prefix; problems of the file are appended to ``problems``."""
    return read_table(path, dict[str, Source], problems) or {}


def load_sources(path: Path) -> Mapping[str, Source]:
    """Sources by prefix; RuleBaseError lists all problems of the file."""
    problems: list[Problem] = []
    sources = read_sources(path, problems)
    raise_problems(problems)
    return sources


def check_pointer(pointer: str, sources: Mapping[str, Source]) -> str:
    """Why a pointer such as ``mcore:path:12-14`` leads nowhere; empty if it is sound."""
    prefix, _, rest = pointer.partition(":")
    if prefix not in sources:
        return f"unknown source {prefix}{suggest(prefix, sources)}"
    problem = sources[prefix].check(rest)
    return f"source {prefix}: {problem}" if problem else ""


def _check_in_context(pointer: str, info: ValidationInfo) -> str:
    sources = (info.context or {}).get("sources")
    if sources is None:
        raise TypeError('pointers to sources are read with context={"sources": {prefix: Source}}')
    if problem := check_pointer(pointer, sources):
        raise ValueError(problem)
    return pointer


Pointer = Annotated[Text, AfterValidator(_check_in_context)]
"""Where a claim is stated: ``<prefix of sources.yaml>:<path:line, path:line-line, or a name>``."""
