"""Which environment variables a report may show, and in which form: ``tables/environment-variables.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict, suggest
from three_walls.tables.value_forms import ValueForm, read_form
from three_walls.tables.yaml_nodes import Node

ENVIRONMENT_VARIABLES_FILE = TABLES_DIR / "environment-variables.yaml"
_STATED = ("words", "pattern", "list_of")


@dataclass(frozen=True, slots=True)
class AllowedVariables:
    """What may be read. A name that looks like a secret is denied, whatever allows it."""

    names: Mapping[str, ValueForm]
    patterns: tuple[tuple[re.Pattern[str], ValueForm], ...]
    secrets: tuple[re.Pattern[str], ...]

    def looks_secret(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.secrets)

    def allows(self, name: str) -> bool:
        """Whether a report may say that the variable is set."""
        return self.form_of(name) is not None

    def shows(self, name: str, value: str) -> bool:
        """Whether a report may show ``value`` of the variable."""
        form = self.form_of(name)
        return form is not None and form.admits(value)

    def form_of(self, name: str) -> ValueForm | None:
        """The form of the variable's values; None for one that may not be read."""
        if self.looks_secret(name):
            return None
        if name in self.names:
            return self.names[name]
        return next((form for pattern, form in self.patterns if pattern.fullmatch(name)), None)


@cache
def allowed_variables() -> AllowedVariables:
    """The list that ships with the program."""
    return load_allowed_variables(ENVIRONMENT_VARIABLES_FILE)


def load_allowed_variables(path: Path) -> AllowedVariables:
    """The list in ``path``; raises RuleBaseError that lists every error, a variable without a form among them."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("forms", "names", "patterns", "secrets"))
    forms = {
        name: read_form(f"a value of the form {name.replace('_', ' ')}", _form(node, problems), problems)
        for name, node in problems.entries(top.get("forms")).items()
    }
    patterns = problems.entries(top.get("patterns"))
    loaded = AllowedVariables(
        names={name: _entry(name, node, forms, problems) for name, node in problems.entries(top.get("names")).items()},
        patterns=tuple(
            (problems.expression(pattern, node), _entry(pattern, node, forms, problems))
            for pattern, node in patterns.items()
        ),
        secrets=tuple(problems.pattern(node, re.IGNORECASE) for node in problems.items(top.get("secrets"))),
    )
    problems.raise_if_any()
    return loaded


def _form(node: Node, problems: Problems) -> Mapping[str, Node]:
    return problems.fields(node, (), _STATED)


def _entry(name: str, node: Node, forms: Mapping[str, ValueForm], problems: Problems) -> ValueForm:
    entry = problems.fields(node, ("reason",), ("form", *_STATED))
    problems.text(entry.get("reason"))
    if "form" not in entry:
        if not any(stated in entry for stated in _STATED):
            problems.add(node, f"{name} has no form: give it form, words, pattern or list_of")
        return read_form("a value of its form", entry, problems)
    wanted = problems.text(entry["form"])
    if wanted and wanted not in forms:
        problems.add(entry["form"], f"no form is called {wanted}{suggest(wanted, forms)}")
    for stated in _STATED:
        if stated in entry:
            problems.add(entry[stated], f"form and {stated} exclude each other: a value has one form")
    return forms.get(wanted) or read_form("a value of its form", {}, problems)
