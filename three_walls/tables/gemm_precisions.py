"""The number format of a GEMM by its kernel's name: ``tables/gemm-precisions.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.hardware import BF16, FP8, NVFP4, GpuModel
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

FP16, TF32, FP32 = "fp16", "tf32", "fp32"
PRECISIONS = (BF16, FP16, FP8, NVFP4, TF32, FP32)

_RATE_OF = {BF16: BF16, FP16: BF16, FP8: FP8, NVFP4: NVFP4}
"""Which peak of the hardware table holds; tensor cores run fp16 as fast as bf16."""


@dataclass(frozen=True, slots=True)
class PrecisionOfName:
    """Kernels whose name ``pattern`` is found in multiply numbers of ``precision``."""

    pattern: re.Pattern[str]
    precision: str


@cache
def gemm_precisions() -> tuple[PrecisionOfName, ...]:
    """The table that ships with the rules."""
    return load_gemm_precisions(TABLES_DIR / "gemm-precisions.yaml")


def load_gemm_precisions(path: Path) -> tuple[PrecisionOfName, ...]:
    """The table of ``path``. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("precisions",))
    rows = tuple(_read_row(problems, node) for node in problems.items(top.get("precisions")))
    problems.raise_if_any()
    return rows


def _read_row(problems: Problems, node: Node) -> PrecisionOfName:
    row = problems.fields(node, ("pattern", "precision", "reason"))
    problems.text(row.get("reason"))
    return PrecisionOfName(problems.pattern(row.get("pattern")), problems.choice(row.get("precision"), PRECISIONS))


def precision_of_kernel(name: str, default: str | None) -> str | None:
    """What the kernel's name says, else ``default``."""
    return next((row.precision for row in gemm_precisions() if row.pattern.search(name)), default)


def peak_of(gpu: GpuModel | None, precision: str | None) -> int | None:
    """The GPU's dense operations per second in ``precision``; None where the hardware table has none."""
    rate = _RATE_OF.get(precision or "")
    return gpu.peak_flops(rate) if gpu is not None and rate is not None else None
