"""Finds the data that ships with the code: ``rules/``, ``tables/`` and ``reports/templates/``."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# A wheel bundles the data inside the package; a checkout (also when installed with -e) has it next to the package.
_ROOT = _PACKAGE / "_bundled" if (_PACKAGE / "_bundled").is_dir() else _PACKAGE.parent

RULES_DIR = _ROOT / "rules"
TABLES_DIR = _ROOT / "tables"
GENERATED_DIR = TABLES_DIR / "generated"
TEMPLATES_DIR = _ROOT / "reports" / "templates"
