"""What the names of kernels and CUDA API calls mean.

``kernel-names/``: kernel -> category, a pack per library. ``gemm-precisions.yaml``: GEMM kernel -> number format.
``api-calls.yaml``: API call -> what it does to its thread. In each table the first pattern that is found counts.
``kernel-settings.yaml``: kernels and NVTX ranges -> settings that they show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, Literal

from three_walls.lib.load_documents import Pattern, Text, load_table, one_of
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.buckets import CATEGORIES, SEND_RECV
from three_walls.tables.hardware import BF16, FP8, NVFP4, GpuModel

FP16 = "fp16"
_RATE_OF = {BF16: BF16, FP16: BF16, FP8: FP8, NVFP4: NVFP4}
"""Number format -> the format whose peak in the hardware table applies; FP16 runs as fast as BF16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPattern:
    """A row of a pack of kernel names."""

    category: Annotated[Text, one_of((*CATEGORIES, SEND_RECV))]
    pattern: Pattern
    """Searched in "<short name> <demangled name>"."""
    phase: Literal["forward", "backward"] | None = None
    """Set for one kernel per pass of attention (softmax or linear), which is counted to recognize recompute."""
    anchor: Literal["step"] | None = None
    """``step``: the kernel marks the optimizer update that ends a step."""
    selects_experts: bool = False
    """Whether the kernel takes the top k, which shows that the program routes tokens to experts."""
    without_experts: Annotated[Text, one_of(CATEGORIES)] | None = None
    """Category of a kernel that every program uses, on a rank where nothing selects experts."""
    reason: Text = ""
    """What the kernel is, or why the row stands here."""


@dataclass(frozen=True, slots=True)
class ApiPattern:
    """A row of ``api-calls.yaml``."""

    kind: Literal[
        "synchronize", "graph_launch", "launch", "copy", "allocate", "module_load", "event_record", "stream_wait"
    ]
    pattern: Pattern
    """Searched in the name of the call, which carries version suffixes."""
    reason: Text


@dataclass(frozen=True, slots=True)
class PrecisionPattern:
    """A row of ``gemm-precisions.yaml``."""

    pattern: Pattern
    """Searched in the kernel's name."""
    precision: Literal["bf16", "fp16", "fp8", "nvfp4", "tf32", "fp32"]
    """Number format of the two factors."""
    reason: Text
    """Where the name comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """A row of ``kernel-settings.yaml``: kernels or ranges that run only with this value of a setting."""

    key: Text
    value: bool | Text
    kernels: Pattern | None = None
    """Searched in the names of kernels."""
    ranges: tuple[Text, ...] = ()
    """An NVTX range whose text contains one of them shows the setting too."""
    reason: Text
    """Why only this value of the setting runs them."""


@dataclass(frozen=True, slots=True)
class ShownSettings:
    """``kernel-settings.yaml``."""

    settings: tuple[ShownSetting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPack:
    """A file of ``kernel-names/``, or one that a user gives: what the kernels of a library are."""

    source: Text = ""
    """The repository that the names come from."""
    release: Text = ""
    files: tuple[Text, ...] = ()
    """Where in the repository the kernels are."""
    is_general: bool = False
    """Whether other libraries have its words too; it is then searched after their packs."""
    words: tuple[Text, ...] = ()
    """Each of its names contains one of them, which spares searching the others. Empty: all names are searched."""
    patterns: tuple[KernelPattern, ...]

    def match(self, text: str) -> KernelPattern | None:
        """The first pattern found in ``text`` (short name, space, demangled name), or None."""
        if self.words and not any(word in text for word in self.words):
            return None
        return next((row for row in self.patterns if row.pattern.search(text)), None)


@dataclass(frozen=True, slots=True)
class ApiTable:
    """``api-calls.yaml``."""

    patterns: tuple[ApiPattern, ...]


@dataclass(frozen=True, slots=True)
class PrecisionTable:
    """``gemm-precisions.yaml``."""

    precisions: tuple[PrecisionPattern, ...]


@cache
def load_kernel_packs() -> Mapping[str, KernelPack]:
    """The packs that ship with the program by name, in the order in which they are searched."""
    packs = {path.stem: load_table(path, KernelPack) for path in sorted((TABLES_DIR / "kernel-names").glob("*.yaml"))}
    return dict(sorted(packs.items(), key=lambda item: item[1].is_general))


@lru_cache(maxsize=10_000)  # the ranks of a run have the same kernels
def match_kernel(text: str, own: KernelPack | None = None) -> KernelPattern | None:
    """What the kernel ``text`` (short name, space, demangled name) is; None where neither ``own`` nor a pack knows."""
    packs = load_kernel_packs().values()
    return next((row for pack in ([own, *packs] if own else packs) if (row := pack.match(text))), None)


@cache
def load_api_patterns() -> tuple[ApiPattern, ...]:
    """Kinds of API calls, in order."""
    return load_table(TABLES_DIR / "api-calls.yaml", ApiTable).patterns


@cache
def gemm_precisions() -> tuple[PrecisionPattern, ...]:
    """Number formats of GEMM kernels, in order."""
    return load_table(TABLES_DIR / "gemm-precisions.yaml", PrecisionTable).precisions


@cache
def shown_settings() -> tuple[ShownSetting, ...]:
    """Settings that kernels and NVTX ranges show."""
    return load_table(TABLES_DIR / "kernel-settings.yaml", ShownSettings).settings


def union_of(patterns: tuple[ApiPattern, ...], kind: str) -> re.Pattern[str]:
    """One expression that matches where any pattern of ``kind`` does."""
    return re.compile("|".join(f"(?:{row.pattern.pattern})" for row in patterns if row.kind == kind))


def precision_of_kernel(name: str, default: str | None) -> str | None:
    """The number format that the kernel's name gives, else ``default``."""
    return next((row.precision for row in gemm_precisions() if row.pattern.search(name)), default)


def peak_of(gpu: GpuModel | None, precision: str | None) -> int | None:
    """The GPU's dense operations per second in ``precision``; None where the hardware table has none."""
    rate = _RATE_OF.get(precision or "")
    return gpu.peak_flops(rate) if gpu is not None and rate is not None else None
