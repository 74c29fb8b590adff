"""Which environment variables a report may show: ``rules/environment-variables.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.knowledge.strict_yaml import Node, Problems, load_strict
from three_walls.resources import RULES_DIR

ENVIRONMENT_VARIABLES_FILE = RULES_DIR / "environment-variables.yaml"


@dataclass(frozen=True, slots=True)
class AllowedVariables:
    """What may be read. A name that looks like a secret is denied, whatever allows it."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    secrets: tuple[re.Pattern[str], ...]

    def looks_secret(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.secrets)

    def allows(self, name: str) -> bool:
        if self.looks_secret(name):
            return False
        return name in self.names or any(pattern.fullmatch(name) for pattern in self.patterns)


@cache
def allowed_variables() -> AllowedVariables:
    """The list that ships with the program."""
    return load_allowed_variables(ENVIRONMENT_VARIABLES_FILE)


def load_allowed_variables(path: Path) -> AllowedVariables:
    """The list in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.mapping(load_strict(path, problems), ("names", "patterns", "secrets"), ())
    problems.raise_if_any()
    names = problems.mapping(top["names"])
    patterns = problems.mapping(top["patterns"])
    for reason in (*names.values(), *patterns.values()):
        problems.text(reason)
    loaded = AllowedVariables(
        names=frozenset(names),
        patterns=tuple(_compile(pattern, node, problems) for pattern, node in patterns.items()),
        secrets=tuple(
            _compile(problems.text(node), node, problems, re.IGNORECASE) for node in problems.items(top["secrets"])
        ),
    )
    problems.raise_if_any()
    return loaded


def _compile(pattern: str, node: Node, problems: Problems, flags: int = 0) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        problems.add(node.place, f"not a regular expression: {error}")
        return re.compile("(?!)")
