"""The generated references of commands and facts are those of the program."""

from __future__ import annotations

import pytest

from tests.locked_versions import not_older
from tools.generate_docs import OUT, PAGES, main


@not_older("click")
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (OUT / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


@not_older("click")
def test_a_page_that_is_not_up_to_date_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PAGES, "facts.md", lambda: "other text")
    assert main(["--check"]) == 1
    assert "not up to date: facts.md" in capsys.readouterr().err
