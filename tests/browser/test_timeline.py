"""The timeline in a real browser: it zooms by keys, wheel, touch and links, and describes what is under the pointer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import open_page, wait_until

PICTURE = "document.querySelector('#timeline-view canvas').toDataURL()"


@pytest.fixture
def page(browser: Browser, folders: dict[str, Path]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1366, "height": 900})
    page = open_page(context, folders["real"], "#timeline").page
    page.wait_for_selector("#timeline-view.live")  # it unpacks its data first
    canvas = page.locator("#timeline-view canvas")
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 5, "y": 5})  # waits until the page has scrolled
    canvas.focus()
    yield page
    context.close()


def picture(page: Page) -> str:
    page.wait_for_timeout(100)  # it is drawn with the next frame
    return str(page.evaluate(PICTURE))


def test_keys_zoom_and_pan_and_escape_shows_the_whole_step(page: Page) -> None:
    whole = picture(page)
    page.keyboard.press("+")
    zoomed = picture(page)
    page.keyboard.press("ArrowRight")
    panned = picture(page)
    assert len({whole, zoomed, panned}) == 3
    page.keyboard.press("Escape")
    wait_until(page, lambda: picture(page) == whole)


def test_the_wheel_zooms_where_the_timeline_has_the_focus_and_else_scrolls_the_page(page: Page) -> None:
    whole = picture(page)
    page.locator("#timeline-view canvas").hover()
    page.mouse.wheel(0, -400)
    wait_until(page, lambda: picture(page) != whole)
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 200)
    wait_until(page, lambda: page.evaluate("scrollY") > before)


def test_dragging_pans(page: Page) -> None:
    for _ in range(3):
        page.keyboard.press("+")
    before = picture(page)
    box = page.locator("#timeline-view canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
    page.mouse.up()
    wait_until(page, lambda: picture(page) != before)


BELOW_THE_PLAN = range(95, 180, 10)
"""Pixels from the top of the timeline: the lane of buckets is among them, however many entries the plan's lane has."""


def test_the_pointer_shows_what_is_there_and_a_click_states_it(page: Page) -> None:
    box = page.locator("#timeline-view canvas").bounding_box()
    assert box is not None
    tip = page.locator("#timeline-view .tip")
    for below in BELOW_THE_PLAN:
        page.mouse.move(box["x"] + 500, box["y"] + below)
        if re.search(r"from [\d.]+ ms.*s in Nsight Systems", tip.inner_text(), re.DOTALL):
            break
    else:
        raise AssertionError("no lane says what is there")
    page.mouse.click(box["x"] + 500, box["y"] + below)
    assert "in Nsight Systems" in page.locator("#timeline-view output").inner_text()


def test_items_are_reached_by_keys_and_described_with_launch_module_and_gap(page: Page) -> None:
    told = set()
    output = page.locator("#timeline-view output")
    for _ in range(12):
        page.keyboard.press("n")
        told.add(output.inner_text())
    assert len(told) >= 10
    together = " ".join(told)
    assert "after its launch call began" in together
    assert "Before it no compute for" in together
    page.keyboard.press("ArrowUp")
    assert output.inner_text() not in told


def test_a_link_of_the_tables_shows_its_stretch(page: Page) -> None:
    whole = picture(page)
    page.locator("#timeline tbody a").first.click()
    assert re.search(r"#t=\d+-\d+&rank=\d+$", page.url)
    wait_until(page, lambda: picture(page) != whole)
    assert re.search(r"ms to [\d.]+ ms", page.locator("#timeline-view output").inner_text())


def test_the_strip_at_the_top_shows_the_whole_step_and_moves_the_view(page: Page) -> None:
    for _ in range(4):
        page.keyboard.press("+")
    before = picture(page)
    box = page.locator("#timeline-view canvas").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 300, box["y"] + 6)
    wait_until(page, lambda: picture(page) != before)


def test_what_is_found_stands_out_and_is_gone_through(page: Page) -> None:
    whole = picture(page)
    search, output = page.get_by_role("searchbox", name="Find in the timeline"), page.locator("#timeline-view output")
    search.fill("softmax")
    wait_until(page, lambda: picture(page) != whole)
    assert re.match(r"\d+ found\. .*softmax", output.inner_text(), re.IGNORECASE)
    first = output.inner_text()
    search.press("Enter")
    assert output.inner_text() != first
    search.press("Shift+Enter")
    assert output.inner_text() == first
    search.fill("no such kernel")
    assert output.inner_text().startswith("0 found.")
    search.fill("")
    page.locator("#timeline-view canvas").press("Escape")
    wait_until(page, lambda: picture(page) == whole)


def test_the_places_of_an_entry_of_the_plan_are_a_lane_and_linked(page: Page) -> None:
    height = "document.querySelector('#timeline-view canvas').clientHeight"
    before = page.evaluate(height)
    page.get_by_role("checkbox", name="Plan").uncheck()
    wait_until(page, lambda: page.evaluate(height) < before)


def test_what_is_shown_can_be_chosen(page: Page) -> None:
    height = "document.querySelector('#timeline-view canvas').clientHeight"
    before = page.evaluate(height)
    page.get_by_role("checkbox", name="NVTX").uncheck()
    wait_until(page, lambda: page.evaluate(height) < before)
    plain = picture(page)
    page.get_by_role("checkbox", name="Critical path").check()
    wait_until(page, lambda: picture(page) != plain)


def test_a_late_rank_is_shown_next_to_the_representative_one(browser: Browser, folders: dict[str, Path]) -> None:
    context = browser.new_context()
    page = open_page(context, folders["built"], "#timeline").page
    page.wait_for_selector("#timeline-view.live")
    assert page.get_by_role("checkbox", name="rank 3").is_checked()
    assert page.get_by_role("checkbox", name="rank 0").is_checked()
    context.close()


def test_a_narrow_screen_and_no_script_have_a_timeline_too(browser: Browser, folders: dict[str, Path]) -> None:
    for scripted in (True, False):
        context = browser.new_context(
            viewport={"width": 390, "height": 800}, has_touch=True, java_script_enabled=scripted
        )
        page = open_page(context, folders["real"], "#timeline").page
        if scripted:
            page.wait_for_selector("#timeline-view.live")
        assert page.locator("#timeline-view canvas").is_visible() == scripted
        assert page.locator("#timeline-view svg").first.is_visible() != scripted
        if scripted:
            told = set()
            for below in BELOW_THE_PLAN:
                page.locator("#timeline-view canvas").tap(position={"x": 200, "y": below})
                told.add(page.locator("#timeline-view output").inner_text())
            assert any("Nsight Systems" in text for text in told)
        context.close()
