"""Tests of generated files, which are written with the versions of constraints-dev.txt."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from tests.paths import REPOSITORY


def not_older(package: str) -> pytest.MarkDecorator:
    """Skips a test where ``package`` is older than the version that wrote docs/generated: its text differs."""
    locked = re.search(rf"^{package}==([\w.]+)", (REPOSITORY / "constraints-dev.txt").read_text(), re.MULTILINE)
    assert locked is not None, package
    return pytest.mark.skipif(
        _numbers(version(package)) < _numbers(locked[1]),
        reason=f"docs/generated is written with {package} {locked[1]}, this is {version(package)}",
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
