"""docs/architecture.md describes every room of the package, and none that there is not; its picture names them."""

from __future__ import annotations

import re

from tests.paths import REPOSITORY


def test_every_room_is_described_and_every_room_that_is_described_exists() -> None:
    rooms = {path.parent.name for path in (REPOSITORY / "three_walls").glob("*/__init__.py")}
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", page)) - {"analyze"} == rooms


def test_the_picture_names_every_room_and_none_that_there_is_not() -> None:
    rooms = {path.parent.name for path in (REPOSITORY / "three_walls").glob("*/__init__.py")}
    picture = (REPOSITORY / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    named = {name for names in re.findall(r'class="h"[^>]*>([^<]+)<', picture) for name in names.split(", ")}
    assert named - {"pipeline"} == rooms
