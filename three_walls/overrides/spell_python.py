"""Edits as lines of Python that change a recipe's ``cfg``, for those who edit the recipe instead of overriding it.

Python can set what an override cannot: fields of a precision that is given by its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from three_walls.model.config import ConfigData

_CREATE_MIXED_PRECISION = (
    "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
    "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
)
_OPENINGS = {"mixed_precision": _CREATE_MIXED_PRECISION}
"""Statements that make an object of a section that may be a name, before its fields are set."""


class PythonSnippet:
    """Collects ``lines``, each a statement; they apply whatever the recipe holds."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def set(self, path: str, value: ConfigData) -> None:
        """``cfg.<path> = value``."""
        section, _, field = path.partition(".")
        if field:
            self._write(*_OPENINGS.get(section, ()))
        self._write(f"cfg.{path} = {_literal(value)}")

    def set_in_either(self, section: str, others: Iterable[str], field: str, value: ConfigData) -> None:
        """``field`` in ``section``, or in each of the ``others`` where that section is None."""
        for other in others:
            self._write(f"(cfg.{section} or cfg.{other}).{field} = {_literal(value)}")

    def set_member(self, path: str, class_path: str, member: str) -> None:
        """``cfg.<path>`` to a member of an enum."""
        module, _, name = class_path.rpartition(".")
        self._write(f"from {module} import {name}", f"cfg.{path} = {name}.{member}")

    def _write(self, *lines: str) -> None:
        self.lines += [line for line in lines if line not in self.lines]


def _literal(value: ConfigData) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)
