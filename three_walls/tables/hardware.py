"""GPU models by the driver's name: ``tables/hardware.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

HARDWARE_FILE = TABLES_DIR / "hardware.yaml"
_REQUIRED = ("name_pattern", "sm", "memory_bytes", "memory_bytes_per_s", "bf16_dense_flops", "source")
_NUMBERS_IF_KNOWN = (
    "nvlink_domain_gpus",
    "nvlink_bytes_per_s",
    "nic_bytes_per_s_one_way",
    "host_link_bytes_per_s",
    "fp8_dense_flops",
    "nvfp4_dense_flops",
)
_OPTIONAL = (*_NUMBERS_IF_KNOWN, "host_link")

BF16, FP8, NVFP4 = "bf16", "fp8", "nvfp4"


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row of the hardware table; numbers are the vendor's, per GPU. None: unknown, or the model has none."""

    family: str
    name_pattern: re.Pattern[str]
    sm: str
    memory_bytes: int
    memory_bytes_per_s: int
    bf16_dense_flops: int
    """Operations per second, without sparsity."""
    source: str
    nvlink_domain_gpus: int | None = None
    nvlink_bytes_per_s: int | None = None
    """Both directions together."""
    nic_bytes_per_s_one_way: int | None = None
    """One direction, in the vendor's own server."""
    host_link: str | None = None
    host_link_bytes_per_s: int | None = None
    """One direction, to and from host memory."""
    fp8_dense_flops: int | None = None
    nvfp4_dense_flops: int | None = None

    @property
    def nvlink_bytes_per_s_one_way(self) -> int | None:
        return None if self.nvlink_bytes_per_s is None else self.nvlink_bytes_per_s // 2

    def peak_flops(self, precision: str) -> int | None:
        """Dense operations per second of GEMMs in ``precision`` (BF16, FP8, NVFP4)."""
        return {BF16: self.bf16_dense_flops, FP8: self.fp8_dense_flops, NVFP4: self.nvfp4_dense_flops}[precision]


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
    entry = problems.fields(node, _REQUIRED, _OPTIONAL)
    known = {name: problems.integer(entry[name]) for name in _NUMBERS_IF_KNOWN if name in entry}
    return GpuModel(
        family=family,
        name_pattern=problems.pattern(entry.get("name_pattern"), re.IGNORECASE),
        sm=problems.text(entry.get("sm")),
        memory_bytes=problems.integer(entry.get("memory_bytes")),
        memory_bytes_per_s=problems.integer(entry.get("memory_bytes_per_s")),
        bf16_dense_flops=problems.integer(entry.get("bf16_dense_flops")),
        source=problems.text(entry.get("source")),
        host_link=problems.text(entry["host_link"]) if "host_link" in entry else None,
        **known,
    )


def _plain_sm(sm: str) -> str:
    """``sm_90`` of ``sm_90``, ``sm_90a``, ``9.0`` or ``90``."""
    digits = re.sub(r"\D", "", sm)
    return f"sm_{digits}"
