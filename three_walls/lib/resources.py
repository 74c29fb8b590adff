"""Finds the data that ships with the code: ``rules/``, ``tables/`` and ``reports/templates/``."""

from __future__ import annotations

from importlib.util import cache_from_source
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
IS_BUNDLED = (_PACKAGE / "_bundled").is_dir()
"""A wheel bundles the data inside the package; a checkout (also when installed with -e) has it next to the package."""
ROOT = _PACKAGE / "_bundled" if IS_BUNDLED else _PACKAGE.parent

RULES_DIR = ROOT / "rules"
TABLES_DIR = ROOT / "tables"
WARNINGS_FOLDER, EFFECTS_FOLDER = "warnings", "effects"  # of the rules
GENERATED_DIR = TABLES_DIR / "generated"
TEMPLATES_DIR = ROOT / "reports" / "templates"
PARSED_DIR = ROOT / "parsed" if IS_BUNDLED else Path(cache_from_source(str(_PACKAGE / "parsed.py"))).with_suffix("")
"""Rules and tables as JSON: ``lib/parsed_documents.py``."""
