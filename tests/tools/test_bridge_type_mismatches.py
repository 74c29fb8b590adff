"""What the tool that asks Megatron-Bridge hides of the machine that it runs on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SCRIPT = """
import importlib.util, json, os, sys
sys.path.insert(0, {tools!r})
import bridge_type_mismatches as tool
tool.PACKAGES = ("wanted",)
tool._isolate()
found = [name for name in ("wanted", "needed", "beyond") if importlib.util.find_spec(name)]
print(json.dumps([found, os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"), os.environ["NCCL_ALGO"], os.listdir()]))
"""


def install(folder: Path, name: str, *needs: str) -> None:
    """A package and its metadata, as pip installs them."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {need}" for need in needs)]
    (metadata / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    (metadata / "top_level.txt").write_text(name, encoding="utf-8")


def test_packages_beyond_those_that_are_needed_are_hidden_with_variables_and_files(tmp_path: Path) -> None:
    install(tmp_path, "wanted", "needed>=1", "beyond; extra == 'all'")
    install(tmp_path, "needed")
    install(tmp_path, "beyond")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_ALGO": "Tree"}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(tools=str(TOOLS))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout) == [["wanted", "needed"], None, "Ring", []]
