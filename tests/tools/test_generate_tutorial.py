"""The tutorial shows what its commands print."""

from __future__ import annotations

import pytest

from tools.generate_tutorial import PAGE, generate


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_tutorial_shows_what_its_commands_print() -> None:
    assert generate() == PAGE.read_text(encoding="utf-8"), "run: python -m tools.generate_tutorial"
