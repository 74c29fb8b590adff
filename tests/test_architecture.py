"""docs/architecture.md describes every room of the package, and none that there is not."""

from __future__ import annotations

import re

from tests.paths import REPOSITORY


def test_every_room_is_described_and_every_room_that_is_described_exists() -> None:
    rooms = {path.parent.name for path in (REPOSITORY / "three_walls").glob("*/__init__.py")}
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", page)) - {"analyze"} == rooms
