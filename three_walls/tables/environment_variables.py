"""Which environment variables a report may show, and in which form: ``tables/environment-variables.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated

from three_walls.lib.load_documents import (
    ByName,
    Loc,
    NamedRow,
    Pattern,
    Text,
    Texts,
    compilable,
    compiled,
    load_table,
    raise_contradictions,
    suggest,
)
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.config_values import LONGEST_VALUE

_SEPARATORS = re.compile(r"[,;|]")
_FLAGS = re.IGNORECASE | re.ASCII | re.VERBOSE
_NOTHING = "(?!)"
Expression = Annotated[str, compilable(_FLAGS)]
"""A regular expression that ignores case; spaces in it are only for readability."""


@dataclass(frozen=True)
class ValueForm(NamedRow):
    """What a value may look like: exactly one of these three is given, or none if no value may be shown."""

    words: Texts | None = None
    """The possible values."""
    pattern: Expression | None = None
    """Must match the whole value."""
    list_of: Expression | None = None
    """Must match each element of a list as a whole."""

    @property
    def stated(self) -> list[str]:
        """Which of the three the entry states."""
        return [name for name in ("words", "pattern", "list_of") if getattr(self, name) is not None]

    def __post_init__(self) -> None:
        extra = self.stated[1:]
        raise_contradictions(
            ((name,), f"{self.stated[0]} and {name} exclude each other: a value has one form") for name in extra
        )

    @property
    def description(self) -> str:
        """What a message calls the form."""
        if self.words is not None:
            return f"one of {', '.join(self.words)}"
        return f"a value of the form {self.name.replace('_', ' ')}" if self.name else "a value of its form"

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """What a value, or each element of a list, must match as a whole."""
        if self.words:
            return re.compile("|".join(re.escape(word) for word in self.words), _FLAGS)
        return re.compile(self.pattern or self.list_of or _NOTHING, _FLAGS)

    def admits(self, value: str) -> bool:
        """Whether ``value`` has this form; an empty value has every form. Takes time linear in its length."""
        value = value.strip()
        if not value:
            return True
        if len(value) > LONGEST_VALUE:
            return False
        elements = [value] if self.list_of is None else _SEPARATORS.split(value)
        return all(self.expression.fullmatch(element.strip()) for element in elements)


@dataclass(frozen=True, kw_only=True)
class Variable(ValueForm):
    """A variable, or a pattern of names, that a report may show."""

    form: Text | None = None
    """Name of one of the table's ``forms``, instead of words, pattern or list_of."""
    reason: Text
    """What the variable affects, or why it is hidden."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form is None and not self.stated:
            raise ValueError("the variable has no form: give it form, words, pattern or list_of")
        if self.form is not None:
            raise_contradictions(
                ((name,), f"form and {name} exclude each other: a value has one form") for name in self.stated
            )


@dataclass(frozen=True, slots=True)
class AllowedVariables:
    """``environment-variables.yaml``. A name that looks like a secret is denied, whatever allows it."""

    forms: ByName[ValueForm]
    names: ByName[Variable]
    patterns: Mapping[Pattern, Variable]
    """By an expression that must match the whole name. The first one that matches counts; ``names`` come first."""
    secrets: tuple[Annotated[re.Pattern[str], compiled(re.IGNORECASE)], ...]
    """Searched in the names of variables."""
    alike: Mapping[str, Text]
    """Variables that all ranks of a run have alike, with the source of that."""

    def __post_init__(self) -> None:
        wrong: list[tuple[Loc, str]] = []
        for part, variables in (("names", self.names), ("patterns", self.patterns)):
            for name, variable in variables.items():
                if variable.form is not None and variable.form not in self.forms:
                    key = name if isinstance(name, str) else name.pattern
                    text = f"no form is called {variable.form}{suggest(variable.form, self.forms)}"
                    wrong.append(((part, key, "form"), text))
        wrong += [(("alike", name), "no entry allows it") for name in self.alike if not self.allows(name)]
        raise_contradictions(wrong)

    def looks_secret(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.secrets)

    def allows(self, name: str) -> bool:
        """Whether a report may state that the variable is set."""
        return self.form_of(name) is not None

    def shows(self, name: str, value: str) -> bool:
        """Whether a report may show ``value`` of the variable."""
        form = self.form_of(name)
        return form is not None and form.admits(value)

    def form_of(self, name: str) -> ValueForm | None:
        """The form of the variable's values; None for a variable that may not be read."""
        if self.looks_secret(name):
            return None
        variable = self.names.get(name)
        if variable is None:
            variable = next((entry for pattern, entry in self.patterns.items() if pattern.fullmatch(name)), None)
        return self.forms[variable.form] if variable is not None and variable.form is not None else variable


@cache
def allowed_variables() -> AllowedVariables:
    """The variables that ship with the program."""
    return load_table(TABLES_DIR / "environment-variables.yaml", AllowedVariables)
