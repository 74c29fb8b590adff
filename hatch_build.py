"""Writes rules and tables as JSON, which a run would otherwise make anew each time.

``three_walls/lib/parsed_documents.py`` reads them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrepareDocuments(BuildHookInterface):  # type: ignore[type-arg]
    """Puts them into a wheel; for an editable installation, to where a checkout keeps them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder = TemporaryDirectory()
        sys.path.insert(0, self.root)
        from three_walls.lib.parsed_documents import write_all
        from three_walls.lib.resources import PARSED_DIR

        if version == "editable":
            PARSED_DIR.mkdir(parents=True, exist_ok=True)
            write_all(PARSED_DIR)
            return
        write_all(Path(self.folder.name))
        build_data["force_include"][self.folder.name] = "three_walls/_bundled/parsed"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        self.folder.cleanup()
