"""GPU models by the driver's name: ``rules/hardware.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.knowledge.strict_yaml import Problems, load_strict
from three_walls.knowledge.yaml_nodes import Node
from three_walls.resources import RULES_DIR

HARDWARE_FILE = RULES_DIR / "hardware.yaml"
_FIELDS = (
    "name_pattern",
    "sm",
    "memory_bytes",
    "nvlink_domain_gpus",
    "nvlink_bytes_per_s",
    "bf16_dense_flops",
    "source",
)
_OPTIONAL = ("nic_bytes_per_s_one_way", "nic_source")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row of the hardware table; numbers are the vendor's, per GPU."""

    family: str
    name_pattern: re.Pattern[str]
    sm: str
    memory_bytes: int
    nvlink_domain_gpus: int
    nvlink_bytes_per_s: int
    """Both directions together."""
    bf16_dense_flops: int
    source: str
    nic_bytes_per_s_one_way: int | None = None
    """Network beyond the NVLink domain in the vendor's own system, one direction; None: not known."""

    @property
    def nvlink_bytes_per_s_one_way(self) -> int:
        return self.nvlink_bytes_per_s // 2


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """The models that ship with the program, in order of precedence."""
    return load_gpu_models(HARDWARE_FILE)


def find_gpu(name: str | None, sm: str | None = None) -> GpuModel | None:
    """The model called ``name`` by the driver; ``None`` when unknown or when ``sm`` contradicts it.

    The compute capability alone names no model: an H20 and an H200 share theirs.
    """
    if not name:
        return None
    for model in gpu_models():
        if model.name_pattern.search(name):
            return model if sm is None or _plain_sm(sm) == model.sm else None
    return None


def load_gpu_models(path: Path) -> tuple[GpuModel, ...]:
    """The models in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("gpus",))
    models = tuple(_read_model(name, node, problems) for name, node in problems.entries(top.get("gpus")).items())
    problems.raise_if_any()
    return models


def _read_model(family: str, node: Node, problems: Problems) -> GpuModel:
    entry = problems.fields(node, _FIELDS, _OPTIONAL)
    numbers = {name: problems.integer(entry.get(name)) for name in _FIELDS[2:6]}
    return GpuModel(
        family=family,
        name_pattern=problems.pattern(entry.get("name_pattern"), re.IGNORECASE),
        sm=problems.text(entry.get("sm")),
        memory_bytes=numbers["memory_bytes"],
        nvlink_domain_gpus=numbers["nvlink_domain_gpus"],
        nvlink_bytes_per_s=numbers["nvlink_bytes_per_s"],
        bf16_dense_flops=numbers["bf16_dense_flops"],
        source=problems.text(entry.get("source")),
        nic_bytes_per_s_one_way=_read_nic(entry, problems),
    )


def _read_nic(entry: Mapping[str, Node], problems: Problems) -> int | None:
    """The network's bandwidth, which needs a source of its own."""
    if not any(key in entry for key in _OPTIONAL):
        return None
    problems.text(entry.get("nic_source"))
    return problems.integer(entry.get("nic_bytes_per_s_one_way"))


def _plain_sm(sm: str) -> str:
    """``sm_90`` of ``sm_90``, ``sm_90a``, ``9.0`` or ``90``."""
    digits = re.sub(r"\D", "", sm)
    return f"sm_{digits}"
