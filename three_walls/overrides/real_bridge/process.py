"""Asks Megatron-Bridge itself, in the interpreter that has it, by running ``bridge_runner.py`` there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUNNER = Path(__file__).with_name("bridge_runner.py")
INSTALL = "pip install --no-deps megatron-bridge megatron-core, and torch, transformers, omegaconf, hydra-core"
TIMEOUT_S = 600


class NoBridgeError(Exception):
    """Megatron-Bridge cannot be asked; the message says why, in one line."""


def ask_bridge(python: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ``bridge_runner.py``; raises NoBridgeError where Megatron-Bridge cannot be imported."""
    try:
        done = subprocess.run(
            [python, str(RUNNER)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBridgeError(f"{python}: {error}") from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise NoBridgeError(f"{python}: {last}") from error
    if "error" in answer:
        raise NoBridgeError(str(answer["error"]))
    return answer
