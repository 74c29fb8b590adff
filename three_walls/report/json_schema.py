"""The published JSON Schema (draft 2020-12) of report.json; docs/report-json.md explains its versions."""

from __future__ import annotations

import json
from typing import Any, cast

from three_walls.resources import TEMPLATES_DIR

SCHEMA_PATH = TEMPLATES_DIR / "report.schema.json"


def load_schema() -> dict[str, Any]:
    """The schema as published: it allows fields it does not know, so that a newer minor version validates."""
    return cast("dict[str, Any]", json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
