"""An examination as JSON, for scripts: docs/doctor.md states its fields."""

from __future__ import annotations

import json

from three_walls.model.examination import Examination

FORMAT_VERSION = "1.0"


def render_examination(examination: Examination) -> str:
    """``examination`` as JSON text; the same examination gives the same bytes."""
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "inputs": [
                {"path_name": i.path_name, "sha256": i.sha256, "nsys_version": i.nsys_version, "schema": i.schema}
                for i in examination.inputs
            ],
            "ranks": examination.ranks,
            "checks": [
                {
                    "name": check.name,
                    "title": check.title,
                    "answer": check.answer,
                    "found": check.found,
                    "claims": list(check.claims),
                    "remedy": check.remedy or None,
                    "nsys": list(check.nsys),
                    "bridge": list(check.bridge),
                    "megatron_lm": list(check.megatron_lm),
                }
                for check in examination.checks
            ],
            "recapture": examination.recapture,
            "bridge": list(examination.bridge),
            "megatron_lm": list(examination.megatron_lm),
        },
        indent=2,
        ensure_ascii=False,
    )
