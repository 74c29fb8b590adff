"""The program's version, as installed."""

from __future__ import annotations

import sys
from pathlib import Path


def find_version() -> str:
    """The version in the name of the installed package's metadata, which is where importlib.metadata looks as well.

    Importing that takes as long as all else that ``three-walls --help`` imports of ours.
    """
    for folder in sys.path:
        for path in sorted(Path(folder).glob("three_walls-*.dist-info")):
            return path.stem.removeprefix("three_walls-")
    return "0+uninstalled"  # as a checkout that was never installed


VERSION = find_version()
