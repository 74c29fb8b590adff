"""Puts the rules and tables into the wheel as JSON too: ``three_walls/tables/parsed_documents.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ParseDocuments(BuildHookInterface):  # type: ignore[type-arg]
    """Runs at the build of a wheel, not of an editable installation, whose files change."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder = TemporaryDirectory()
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from three_walls.tables.parsed_documents import write_all

        write_all(Path(self.folder.name))
        build_data["force_include"][self.folder.name] = "three_walls/_bundled/parsed"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        self.folder.cleanup()
