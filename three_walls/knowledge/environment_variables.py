"""Which environment variables a report may show: ``rules/environment-variables.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.knowledge.strict_yaml import Problems, load_strict
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
    top = problems.fields(load_strict(path, problems), ("names", "patterns", "secrets"))
    names, patterns = problems.entries(top.get("names")), problems.entries(top.get("patterns"))
    for reason in (*names.values(), *patterns.values()):
        problems.text(reason)
    loaded = AllowedVariables(
        names=frozenset(names),
        patterns=tuple(problems.expression(pattern, node) for pattern, node in patterns.items()),
        secrets=tuple(problems.pattern(node, re.IGNORECASE) for node in problems.items(top.get("secrets"))),
    )
    problems.raise_if_any()
    return loaded
