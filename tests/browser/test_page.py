"""report.html in a real browser: it works, it is readable everywhere, and it keeps to itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.conftest import open_page, wait_until

WIDTHS = (390, 1366, 2560)


@pytest.fixture(params=["built", "real"])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def page(browser: Browser, folder: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    yield open_page(context, folder).page
    context.close()


def show_all_tables(page: Page) -> None:
    """Unfold everything and pass every table, so that each has its sort buttons and its filter."""
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    page.evaluate("document.querySelectorAll('table').forEach((table) => table.scrollIntoView())")
    height = page.evaluate("document.documentElement.scrollHeight")
    for y in range(0, height, 700):
        page.evaluate(f"window.scrollTo({{top: {y}, behavior: 'instant'}})")
        page.wait_for_timeout(5)


@pytest.mark.parametrize("name", ["built", "real", "hostile", "wide"])
def test_no_error_no_dialog_and_no_request(browser: Browser, folders: dict[str, Path], name: str) -> None:
    context = browser.new_context()
    opened = open_page(context, folders[name])
    show_all_tables(opened.page)
    for button in opened.page.locator("button:visible").all()[:40]:
        button.click()
    assert opened.messages == []
    assert [url for url in opened.requests if not url.endswith("/report.html")] == []
    context.close()


def test_the_answer_is_on_the_first_screen(page: Page) -> None:
    for selector in ("h1", ".metrics", ".first li:last-child", ".limits"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None, selector
        assert box["y"] + box["height"] <= 768, selector


@pytest.mark.parametrize("width", [390, 900, 1280])
def test_the_navigation_is_one_line_of_whole_words_and_its_menu_has_every_section(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 720})
    bounds, links = page.evaluate(
        """() => {
          const edges = (element) => {
            const box = element.getBoundingClientRect();
            return [box.top, box.bottom, box.right];
          };
          const list = document.querySelector(".bar nav > ul");
          return [edges(list), [...list.querySelectorAll("a")].map(edges)];
        }"""
    )
    shown = [link for link in links if link[0] < bounds[1]]
    assert shown
    assert all(link[1] <= bounds[1] + 1 and link[2] <= bounds[2] for link in shown)
    targets = "(links) => links.map((link) => link.hash)"
    in_bar, in_menu = (page.eval_on_selector_all(f".bar {of} a", targets) for of in ("nav > ul", ".menu"))
    assert set(in_bar) < set(in_menu)


def test_each_copy_button_gives_exactly_the_lines_of_its_file(browser: Browser, folder: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = open_page(context, folder).page
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    plan = json.loads((folder / "report.json").read_text())["plan"]
    suffixes = {"bridge": "bridge.txt", "megatron-lm": "megatron.txt", "env": "env", "python": "py"}
    compared = 0
    for button in page.locator("button[data-copy^='copy-entry-']").all():
        order, form = re.fullmatch(r"copy-entry-(\d+)-(.+)", button.get_attribute("data-copy") or "").groups()  # type: ignore[union-attr]
        if form not in suffixes:
            continue  # lines under a condition, which no file has as lines
        button.click()
        copied = page.evaluate("navigator.clipboard.readText()")
        (file,) = (folder / "overrides").glob(f"{int(order):02}-*.{suffixes[form]}")
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert copied == "\n".join(lines) + "\n", file.name
        compared += 1
    assert compared >= sum(step["overrides"] is not None for step in plan) > 0
    context.close()


def test_what_to_confirm_is_checked_by_its_label_and_by_the_keyboard(page: Page) -> None:
    box = page.locator(".plan-step .checklist input").first
    page.locator(".plan-step .checklist label span").first.click(position={"x": 5, "y": 5})
    assert box.is_checked()
    box.focus()
    page.keyboard.press("Space")
    assert not box.is_checked()


def test_a_column_sorts_by_value_in_both_directions(page: Page) -> None:
    table = page.locator("#budget table").first
    table.scroll_into_view_if_needed()
    head = table.locator("th.num").first
    head.locator("button").click()
    for direction in ("descending", "ascending"):
        assert head.get_attribute("aria-sort") == direction
        keys = [
            float(cell.get_attribute("data-key") or "nan") for cell in table.locator("tbody tr td:nth-child(3)").all()
        ]
        assert keys == sorted(keys, reverse=direction == "descending")
        head.locator("button").press("Enter")


def test_a_filter_leaves_the_rows_that_hold_every_word(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#facts")
    field = page.locator("#facts input[type=search]")
    field.fill("ep exposed")
    shown = page.locator("#facts tbody tr:visible")
    assert 0 < shown.count() < page.locator("#facts tbody tr").count()
    assert all("ep" in row.lower() and "exposed" in row.lower() for row in shown.all_text_contents())
    field.fill("")
    assert shown.count() == page.locator("#facts tbody tr").count()


def test_defaults_of_the_configuration_are_hidden_until_they_are_wanted(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#config")
    rows, shown = page.locator("#config tbody tr"), page.locator("#config tbody tr:visible")
    assert 0 < shown.count() < rows.count()
    page.locator("#config input.only").uncheck()
    assert shown.count() == rows.count()


def test_links_open_the_folds_around_their_target(browser: Browser, folder: Path) -> None:
    context = browser.new_context()
    page = open_page(context, folder, "#fact-step_ns").page
    assert page.locator("#fact-step_ns").is_visible()
    rule = page.evaluate("document.querySelector('#findings details.outcome article').id")
    page.evaluate(f"location.hash = '{rule}'")
    wait_until(page, page.locator(f"#{rule}").is_visible)
    assert not page.locator("#warnings table").is_visible()
    page.locator(".limits a").first.click()
    wait_until(page, page.locator("#warnings table").is_visible)
    context.close()


def test_every_line_of_the_head_leads_to_its_entry_of_the_plan_or_its_finding(page: Page) -> None:
    for link in page.locator(".first a").all():
        target = page.locator(link.get_attribute("href") or "#none")
        title = (target.locator("h3").text_content() or "").strip()  # a finding may be folded
        assert title.startswith(link.inner_text())


def test_hostile_names_stay_text(browser: Browser, folders: dict[str, Path]) -> None:
    context = browser.new_context()
    page = open_page(context, folders["hostile"]).page
    assert page.locator("script:not([type])").count() == 1
    assert page.locator("script").count() == 2  # the other one is the timeline's data
    assert page.locator("img").count() == 0
    assert "<script>alert(1)</script>" in page.locator("main").inner_text()
    context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["built", "real", "hostile", "wide"])
def test_nothing_makes_the_page_scroll_sideways(
    browser: Browser, folders: dict[str, Path], name: str, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = open_page(context, folders[name]).page
    page.evaluate("document.querySelectorAll('main details').forEach((fold) => { fold.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_the_timeline_zooms_and_describes_what_is_under_the_pointer(browser: Browser, folders: dict[str, Path]) -> None:
    context = browser.new_context(viewport={"width": 1366, "height": 900})
    page = open_page(context, folders["real"], "#timeline").page
    canvas = page.locator("#timeline-view canvas")
    canvas.scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    whole = canvas.screenshot()
    page.get_by_role("button", name="Zoom in").click()
    wait_until(page, lambda: canvas.screenshot() != whole)
    box = canvas.bounding_box()
    assert box is not None
    canvas.hover(position={"x": box["width"] / 2, "y": 42})  # the lane of owners has no gap
    assert re.search(r"\d (ms|us|ns) from ", page.locator("#timeline-view .tip").inner_text())
    canvas.focus()
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    wait_until(page, page.locator("#timeline-view .tip").is_hidden)
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, folder: Path, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = open_page(context, folder).page
    show_all_tables(page)
    found = Axe().run(page).response["violations"]
    serious = [
        (rule["id"], node["target"], node["failureSummary"][:200])
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"][:3]
    ]
    assert serious == []
    context.close()


def test_the_first_tab_offers_to_skip_the_navigation(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.tagName"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    assert seen >= {"A", "BUTTON"}


def test_it_is_readable_without_its_script(browser: Browser, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1366, "height": 768})
    page = open_page(context, folder).page
    assert page.locator("h1").is_visible()
    assert page.locator("#figure-plan svg.plot").first.is_visible()
    assert page.locator("#budget table").first.is_visible()
    assert page.locator("button:visible").count() == 0  # nothing that would do nothing
    page.locator("#facts summary").first.click()
    wait_until(page, page.locator("#facts table").is_visible)
    context.close()


@pytest.mark.parametrize("name", ["real", "wide"])
def test_paper_shows_verdict_and_plan_on_their_own(browser: Browser, folders: dict[str, Path], name: str) -> None:
    context = browser.new_context(viewport={"width": 703, "height": 1000})
    page = open_page(context, folders[name]).page
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    shown = page.evaluate(
        "[...document.querySelectorAll('main section')].filter((part) => part.checkVisibility()).map((part) => part.id)"
    )
    assert set(shown) <= {"verdict", "warnings", "plan"}
    assert page.evaluate("document.body.scrollHeight") < 2.3 * 1000
    context.close()


@pytest.mark.parametrize("name", ["real", "wide"])
def test_paper_shows_everything_where_all_is_asked_for_and_cuts_nothing(
    browser: Browser, folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    context = browser.new_context(viewport={"width": 703, "height": 1000})  # the text of A4
    page = open_page(context, folders[name]).page
    page.emulate_media(media="print")
    page.evaluate("window.print = () => window.dispatchEvent(new Event('beforeprint'))")
    page.evaluate("document.querySelector('[data-print]').click()")
    assert page.locator("main details:not([open])").count() == 0
    wide = page.evaluate(
        "[...document.querySelectorAll('main table, main svg, main pre')]"
        ".filter((part) => part.getBoundingClientRect().right > innerWidth + 1)"
        ".map((part) => part.closest('section').id + ' ' + (part.caption ? part.caption.textContent : part.tagName))"
    )
    assert wide == []
    page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("main details:not([open])").count() > 0
    context.close()


@pytest.mark.parametrize("name", ["built", "real"])
def test_it_is_light_and_opens_at_once(browser: Browser, folders: dict[str, Path], name: str) -> None:
    assert (folders[name] / "report.html").stat().st_size <= 1_500_000
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # what others run does not count
    page.goto((folders[name] / "report.html").as_uri())
    page.wait_for_timeout(300)
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 1.0
    context.close()


def test_charts_keep_their_text_in_the_dark(browser: Browser, folder: Path) -> None:
    texts = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        page = open_page(context, folder).page
        texts[scheme] = page.evaluate("getComputedStyle(document.querySelector('.axis text')).fill")
        context.close()
    assert texts["light"] != texts["dark"]
