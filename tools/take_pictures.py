"""Writes the pictures of docs/images: a report of a sample in a browser.

``python -m tools.take_pictures`` needs the extra ``browser`` and a Chromium (``THREE_WALLS_CHROMIUM``).
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

from three_walls import analyze
from three_walls.report.html_report import render_html

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = REPOSITORY / "docs" / "images"
SAMPLE = REPOSITORY / "sample_traces" / "te-host-bound"
WIDTH = 1280
PICTURES = {
    "report": ("verdict", 590),
    "plan": ("plan", 900),
    "timeline": ("timeline", 690),
    "kernels": ("kernels", 560),
}
"""Name of the picture -> the section at its top, and its height."""


def main() -> None:
    report = analyze(SAMPLE, logs=[SAMPLE / "train.log"], config=SAMPLE / "run_config.yaml")
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder) / "report.html"
        file.write_text(render_html(report), encoding="utf-8")
        path = os.environ.get("THREE_WALLS_CHROMIUM", "/usr/bin/chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        page.goto(file.as_uri())
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
