"""Edits as lines of Python that change a recipe's ``cfg``, for those who edit the recipe instead of overriding it.

Python can set what an override cannot: fields of a precision that is given by its name.
"""

from __future__ import annotations

from three_walls.model.config import ConfigData

_CREATE_COMM_OVERLAP = (
    "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
    "cfg.comm_overlap = cfg.comm_overlap or CommOverlapConfig(tp_comm_overlap=False)",
)
_CREATE_MIXED_PRECISION = (
    "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
    "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
)
_OPENINGS = {"comm_overlap": _CREATE_COMM_OVERLAP, "mixed_precision": _CREATE_MIXED_PRECISION}
"""Statements that make an object of a section that may be missing or a name, before its fields are set."""


class PythonSnippet:
    """Collects ``lines``, each a statement; they apply whatever the recipe holds."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def set(self, path: str, value: ConfigData) -> None:
        """``cfg.<path> = value``."""
        section, _, field = path.partition(".")
        if field:
            self._write(*_OPENINGS.get(section, ()))
        self._write(f"cfg.{path} = {list(value) if isinstance(value, tuple) else value!r}")

    def set_member(self, path: str, class_path: str, member: str) -> None:
        """``cfg.<path>`` to a member of an enum."""
        module, _, name = class_path.rpartition(".")
        self._write(f"from {module} import {name}", f"cfg.{path} = {name}.{member}")

    def _write(self, *lines: str) -> None:
        self.lines += [line for line in lines if line not in self.lines]
