"""The version is that of the installed metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from three_walls.lib.version import VERSION, find_version


def test_it_is_what_importlib_finds() -> None:
    try:
        installed = version("three-walls")
    except PackageNotFoundError:
        installed = "0+uninstalled"
    assert installed == VERSION


def test_the_first_metadata_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name in (("a", "three_walls_more-3.0"), ("b", "three_walls-1.2.0rc1+local"), ("c", "three_walls-2.0")):
        (tmp_path / folder / f"{name}.dist-info").mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / name) for name in ("absent", "a", "b", "c")])
    assert find_version() == "1.2.0rc1+local"


def test_a_checkout_that_was_never_installed_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert find_version() == "0+uninstalled"
