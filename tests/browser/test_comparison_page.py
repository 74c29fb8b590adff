"""compare.html and history.html in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.conftest import open_page
from tests.browser.test_page import WIDTHS, show_all_tables
from tests.report.test_html_report import HOSTILE, spoil
from tests.runs.sample_runs import make_run
from tests.runs.test_settings import DEEPEP
from three_walls.report.comparison_report import render_shown
from three_walls.runs.compare_runs import compare
from three_walls.runs.compared_run import Run
from three_walls.runs.judge_history import TriedWith, judge_history

UNSET = {"moe_router_dtype": None, "cuda_graph_scope": None}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories with a page each: of a pair, of several pairs, of a history, and of a run whose names are attacks."""
    base = make_run("base", settings=UNSET)
    edit = make_run("edit", 560, buckets_ms={"ep_all_to_all": 100}, settings={**UNSET, **DEEPEP})
    worse = make_run("worse", 640, settings={**UNSET, "micro_batch_size": 2})
    spoiled = Run(HOSTILE, spoil(edit.report))
    shown = {
        "pair": compare(base, [edit]),
        "several": compare(base, [edit, worse], [base]),
        "hostile": compare(Run(HOSTILE, spoil(base.report)), [spoiled], force=True),
        "history": judge_history([TriedWith(base), TriedWith(edit), TriedWith(worse)]),
    }
    found = {}
    for name, value in shown.items():
        found[name] = tmp_path_factory.mktemp(name)
        (found[name] / "report.html").write_text(render_shown(value, "html"), encoding="utf-8")
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["pair", "several", "hostile", "history"])
def test_it_keeps_to_itself_and_fits_the_window(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    opened = open_page(context, pages[name])
    show_all_tables(opened.page)
    assert opened.messages == []
    assert [url for url in opened.requests if not url.endswith("/report.html")] == []
    assert opened.page.locator("script").count() == 1
    assert opened.page.locator("img").count() == 0
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["several", "history"])
def test_axe_finds_nothing_serious(browser: Browser, pages: dict[str, Path], name: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = open_page(context, pages[name]).page
    show_all_tables(page)
    violations = Axe().run(page).response["violations"]
    serious = [
        (rule["id"], node["target"])
        for rule in violations
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    assert serious == []
    context.close()
