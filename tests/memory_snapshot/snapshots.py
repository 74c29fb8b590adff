"""Builds small snapshots as torch.cuda.memory._snapshot() makes them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any


def frame(name: str, filename: str = "/opt/megatron/core/model.py") -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": 7}


FORWARD = [frame("forward")]
STATE = [frame("_init_group", "/site/torch/optim/adam.py")]


def event(action: str, address: int, size: int, frames: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    found = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1}
    return found if frames is None else found | {"frames": frames}


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": [], **more}


def snapshot(events: list[dict[str, Any]], *blocks: dict[str, Any], device: int = 0) -> dict[str, Any]:
    """One segment that holds ``blocks``, and the history of ``device``."""
    total = sum(block["size"] for block in blocks)
    segment = {
        "device": device,
        "address": 0,
        "total_size": total,
        "allocated_size": total,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "frames": [],
        "blocks": list(blocks),
    }
    return {"segments": [segment], "device_traces": [[] for _ in range(device)] + [events]}


def write(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path
