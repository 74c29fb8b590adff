"""The program's version, as installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("three-walls")
except PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0+uninstalled"
