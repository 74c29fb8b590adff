"""Releases of Megatron-Bridge that tests can run: ``make test-bridge`` installs them and names them to the tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.cases import RELEASE
from three_walls.bridge.real_bridge.verify_overrides import RUNNER
from three_walls.bridge.render_overrides import NEWEST_BRIDGE
from three_walls.tables.bridge_releases import known_releases

EACH_RELEASE = pytest.mark.parametrize(
    "release",
    [
        pytest.param(release, marks=[] if release in (RELEASE, NEWEST_BRIDGE) else [pytest.mark.exhaustive])
        for release in known_releases()
    ],
)
"""Every release that is known; `make test` tries the first and the newest one."""

MODELS = Path(__file__).parent / "models"
_LATER_NAMES = {
    "qwen3_30b_a3b_pretrain_config": "qwen3_30b_a3b_pretrain_8gpu_h100_bf16_config",
    "gpt3_175b_pretrain_config": "gpt3_175b_pretrain_32gpu_h100_bf16_config",
    "nemotron_3_nano_pretrain_config": "nemotron_3_nano_pretrain_8gpu_h100_bf16_config",
}
"""What 0.6 calls a recipe; there the first name is that of a recipe with a CommOverlapConfig."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """One release and how to run it."""

    release: str
    python: str
    folders: tuple[str, ...]
    """To put on the interpreter's path."""

    def ask(
        self,
        cases: Sequence[dict[str, Any]],
        gpu: tuple[str, int, int] = ("NVIDIA H100 80GB HBM3", 9, 0),
        transformer_engine: str = "2.14.0",
    ) -> list[dict[str, Any]]:
        """One result per case, all of one process, on a machine with that GPU (name and compute capability).

        The cases and the results are those of ``real_bridge/bridge_runner.py``.
        """
        name, major, minor = gpu
        request = {
            "gpu_name": name,
            "gpu_major": major,
            "gpu_minor": minor,
            "transformer_engine": transformer_engine,
            "models": str(MODELS),
            "cases": list(cases),
        }
        done = subprocess.run(
            [self.python, str(RUNNER)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(self.folders), "HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answer = json.loads(done.stdout)
        assert answer.get("bridge") == self.release, answer
        results: list[dict[str, Any]] = answer["results"]
        return results


def bridges_of_environment() -> dict[str, Bridge]:
    """Releases in ``THREE_WALLS_BRIDGES``: words as ``read_bridge`` reads them."""
    bridges = [read_bridge(word) for word in os.environ.get("THREE_WALLS_BRIDGES", "").split()]
    return {bridge.release: bridge for bridge in bridges}


def read_bridge(text: str) -> Bridge:
    """``<release>=<python>:<folder>...``."""
    release, _, rest = text.partition("=")
    python, *folders = rest.split(":")
    return Bridge(release, python, tuple(folders))


BRIDGES = bridges_of_environment()
EVERY_RELEASE = pytest.mark.parametrize(
    "release",
    sorted(BRIDGES)
    or [pytest.param("", marks=pytest.mark.skip("make test-bridge builds the interpreters that this needs"))],
)


def recipe_in(release: str, recipe: str) -> str:
    """The recipe's name in a release."""
    return _LATER_NAMES.get(recipe, recipe) if release.startswith("0.6") else recipe
