"""Writes the pictures of docs/images: the sample report in a browser.

``python -m tools.take_pictures`` needs the extra ``browser`` and a Chromium (``THREE_WALLS_CHROMIUM``).
"""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tools.generate_sample_report import OUT, REPOSITORY

IMAGES = REPOSITORY / "docs" / "images"
WIDTH = 1280
PICTURES = {
    "report": ("verdict", 590),
    "plan": ("plan", 900),
    "timeline": ("timeline", 690),
    "kernels": ("kernels", 560),
}
"""Name of the picture -> the section at its top, and its height."""


def main() -> None:
    with sync_playwright() as driver:
        path = os.environ.get("THREE_WALLS_CHROMIUM", "/usr/bin/chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        page.goto(OUT.as_uri())
        page.add_style_tag(content="html { scroll-behavior: auto !important }")
        page.wait_for_selector("#timeline-view.live", state="attached")
        for name, (section, height) in PICTURES.items():
            _take(page, section, height, IMAGES / f"{name}.png")
        browser.close()


def _take(page: Page, section: str, height: int, path: Path) -> None:
    page.set_viewport_size({"width": WIDTH, "height": height})
    for _ in range(3):  # sections above it get their height only once they were near
        page.evaluate("name => document.getElementById(name).scrollIntoView()", section)
        page.wait_for_timeout(300)
    if section == "verdict":
        page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=path)


if __name__ == "__main__":
    main()
