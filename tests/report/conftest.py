"""Reports that the tests of this folder render."""

from __future__ import annotations

import pytest

from tests.report.sample_report import abstained_report, sample_report
from three_walls.report.html_report import render_html
from three_walls.report.report import Report


@pytest.fixture(scope="session")
def report() -> Report:
    return sample_report()


@pytest.fixture(scope="session")
def page(report: Report) -> str:
    return render_html(report)


@pytest.fixture(scope="session")
def abstained() -> Report:
    return abstained_report()
