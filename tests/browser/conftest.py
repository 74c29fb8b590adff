"""A Chromium for the tests of this folder, and pages for it. ``make test-browser`` runs them.

They use the system's Chromium and nothing from the network: THREE_WALLS_CHROMIUM is its path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.analyzed_samples import analyze_sample
from tests.report.sample_report import sample_report
from tests.report.test_html_report import spoil
from three_walls.report.write_report import write_report

_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
REAL = "wide-nvlink-alltoall.sqlite"


@dataclass
class Opened:
    """A page and what went wrong on it: messages of the console, errors, and requests other than for the file."""

    page: Page
    messages: list[str]
    requests: list[str]


@pytest.fixture(autouse=True)
def no_network() -> None:
    """Instead of the fixture of the same name, which would cut the tests off from their browser.

    What the page requests is watched in the browser itself.
    """


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Fails, and does not skip, where there is no Chromium."""
    chromium = Path(os.environ["THREE_WALLS_CHROMIUM"])
    assert chromium.is_file(), f"{chromium}: no Chromium there; make test-browser CHROMIUM=PATH"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(chromium), args=list(_OPTIONS))
        yield started
        started.close()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories with all files of a report: built by hand, of a real trace, with hostile names, with 64 ranks."""
    built = sample_report()
    first = built.ranks[0]
    many = tuple(replace(first, rank=number, device=number % 8) for number in range(64))
    reports = {
        "built": built,
        "real": analyze_sample(REAL),
        "hostile": spoil(built),
        "wide": replace(built, ranks=many),
    }
    found = {}
    for name, report in reports.items():
        found[name] = tmp_path_factory.mktemp(name)
        write_report(report, found[name])
    return found


def open_page(context: BrowserContext, folder: Path, anchor: str = "") -> Opened:
    """report.html of ``folder``, loaded."""
    page = context.new_page()
    opened = Opened(page, [], [])
    page.on("console", lambda message: opened.messages.append(message.text))
    page.on("pageerror", lambda error: opened.messages.append(str(error)))
    page.on("dialog", lambda dialog: opened.messages.append(dialog.message))
    page.on("request", lambda request: opened.requests.append(request.url))
    page.goto(f"{(folder / 'report.html').as_uri()}{anchor}")
    return opened


def wait_until(page: Page, holds: Callable[[], bool]) -> None:
    """Waits for what ``page`` does later, with its next frame or after a change of its address; fails after 5 s."""
    for _ in range(100):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("the page does not show within 5 s what it should")
