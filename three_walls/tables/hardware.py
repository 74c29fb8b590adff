"""GPU models, by the name that the driver gives them: ``tables/hardware.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from three_walls.lib.load_documents import ByName, NamedRow, Text, compiled, load_table
from three_walls.lib.resources import TABLES_DIR

BF16, FP8, NVFP4 = "bf16", "fp8", "nvfp4"
LARGEST_SERVER_GPUS = 8
"""The most GPUs that NVLink joins on an HGX or DGX board; in a larger domain it joins hosts (a rack)."""


@dataclass(frozen=True, slots=True)
class GpuModel(NamedRow):
    """A GPU model. Numbers are the vendor's, per GPU. None means unknown, or that the model has no such part."""

    name_pattern: Annotated[re.Pattern[str], compiled(re.IGNORECASE)]
    """Searched in the name that the driver gives."""
    sm: Text
    """Compute capability, for example sm_90."""
    memory_bytes: int
    """Nominal device memory, in decimal gigabytes as sold."""
    memory_bytes_per_s: int
    source: Text
    """Where the numbers come from."""
    nvlink_domain_gpus: int | None = None
    """GPUs that NVLink connects in the vendor's server or rack."""
    nvlink_bytes_per_s: int | None = None
    """Both directions together."""
    nic_bytes_per_s_one_way: int | None = None
    """One direction, in the vendor's own server."""
    host_link: Text | None = None
    """What connects the GPU to host memory."""
    host_link_bytes_per_s: int | None = None
    """One direction, to and from host memory, before protocol overhead."""
    bf16_dense_flops: int | None = None
    """BF16 operations per second, without sparsity; FP16 is the same."""
    fp8_dense_flops: int | None = None
    """FP8 operations per second, without sparsity; MXFP8 runs at the same rate."""
    nvfp4_dense_flops: int | None = None

    @property
    def family(self) -> str:
        return self.name

    @property
    def nvlink_bytes_per_s_one_way(self) -> int | None:
        return None if self.nvlink_bytes_per_s is None else self.nvlink_bytes_per_s // 2

    def peak_flops(self, precision: str) -> int | None:
        """Dense operations per second of GEMMs in ``precision`` (BF16, FP8, NVFP4)."""
        return {BF16: self.bf16_dense_flops, FP8: self.fp8_dense_flops, NVFP4: self.nvfp4_dense_flops}[precision]


@dataclass(frozen=True, slots=True)
class HardwareTable:
    """``hardware.yaml``."""

    gpus: ByName[GpuModel]
    """Models by family, in order of precedence."""


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """The models that ship with the program, in order of precedence."""
    return tuple(load_table(TABLES_DIR / "hardware.yaml", HardwareTable).gpus.values())


def find_gpu(name: str | None, sm: str | None = None) -> GpuModel | None:
    """The model that the driver calls ``name``; None if it is unknown or ``sm`` contradicts it.

    The compute capability alone identifies no model: H20 and H200 have the same.
    """
    if not name:
        return None
    for model in gpu_models():
        if model.name_pattern.search(name):
            return model if sm is None or _normalize_sm(sm) == model.sm else None
    return None


def _normalize_sm(sm: str) -> str:
    """``sm_90`` for ``sm_90``, ``sm_90a``, ``9.0`` and ``90``."""
    digits = re.sub(r"\D", "", sm)
    return f"sm_{digits}"
