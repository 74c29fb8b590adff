"""Golden files hold what was written before. A test that differs prints the difference.

``UPDATE_GOLDEN=1 pytest PATH`` renews them; review their diff as you review code.
"""

from __future__ import annotations

import os
from difflib import unified_diff
from itertools import islice
from pathlib import Path

import pytest

_MOST_LINES = 80


def check_golden(path: Path, text: str) -> None:
    """Fails with a unified diff where ``text`` is not what the golden file at ``path`` holds."""
    if "UPDATE_GOLDEN" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != before:
        lines = unified_diff(before.splitlines(), text.splitlines(), path.name, "now", lineterm="", n=2)
        shown = "\n".join(islice(lines, _MOST_LINES))
        pytest.fail(f"{path.name} differs; UPDATE_GOLDEN=1 renews it\n{shown}", pytrace=False)
