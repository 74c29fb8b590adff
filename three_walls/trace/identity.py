"""The ranks in an export. A rank is one GPU of one process of one capture.

Never the device id alone: with one process per rank and CUDA_VISIBLE_DEVICES every rank can be device 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from three_walls.lib import limits
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.tables.shareable import is_safe_text
from three_walls.trace.nsys_export import NsysExport

UNNAMED_GPU = "GPU of another name"
"""Replaces a name that no driver gives a GPU, and that may therefore be private."""

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_RANK = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as TARGET_INFO_GPU describes it."""

    name: str
    sm: str | None  # sm_90
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU of the run."""

    rank_index: int
    """Unique within one analysis: ranks are numbered in the order in which they are found."""
    rank: int
    """The rank that the launcher gave the process, or :attr:`rank_index`."""
    rank_source: str
    """``environment`` where the launcher's variable gives the rank; else ``order``."""
    process: int  # globalPid
    device: int
    host: str | None
    gpu: Gpu | None
    input_name: str

    def after(self, ranks_count: int) -> Rank:
        """This rank where ``ranks_count`` others were found before it."""
        index = self.rank_index + ranks_count
        return replace(self, rank_index=index, rank=index if self.rank_source == "order" else self.rank)


def read_gpu(export: NsysExport) -> Gpu | None:
    """The GPU model of the machine; None if no model was recorded, or several different ones.

    CUDA_VISIBLE_DEVICES renumbers devices, so a device number does not decide between models.
    """
    table = "TARGET_INFO_GPU"
    if not export.has(table, "name"):
        return None
    existing = export.columns[table]
    columns = [column if column in existing else "NULL" for column in ("computeMajor", "computeMinor", "totalMemory")]
    rows = export.rows(f"SELECT CAST(name AS TEXT), {', '.join(columns)} FROM {table}")
    models = {
        Gpu(
            name=name if is_safe_text(name) else UNNAMED_GPU,
            sm=f"sm_{major}{minor}" if isinstance(major, int) and isinstance(minor, int) else None,
            memory_bytes=memory if isinstance(memory, int) and 0 < memory < limits.MOST_COPY_BYTES else None,
        )
        for name, major, minor, memory in rows
        if name is not None
    }
    return models.pop() if len(models) == 1 else None


def read_host(export: NsysExport) -> str | None:
    """Name of the machine that was profiled, or None."""
    for name, value in export.pairs("TARGET_INFO_SYSTEM_ENV"):
        if name == "Hostname":
            return value
    return None


def identify_ranks(
    export: NsysExport,
    devices: Sequence[tuple[int, int]],
    environment: Mapping[str, ConfigValue],
    first_rank_index: int,
) -> tuple[Rank, ...]:
    """The ranks of ``devices``, (process, device) pairs that ran kernels, in that order.

    The launcher's RANK belongs to one process. With several GPUs in a capture it is not used, and ranks are numbered in
    the order in which they are found.
    """
    gpu = read_gpu(export)
    host = read_host(export)
    own_rank = global_rank(environment) if len(devices) == 1 else None
    return tuple(
        Rank(
            rank_index=first_rank_index + order,
            rank=own_rank if own_rank is not None else first_rank_index + order,
            rank_source="order" if own_rank is None else "environment",
            process=process,
            device=device,
            host=host,
            gpu=gpu,
            input_name=export.shown_as.name,
        )
        for order, (process, device) in enumerate(devices)
    )


def global_rank(environment: Mapping[str, ConfigValue]) -> int | None:
    """The rank that the launcher gave the profiled process, or None."""
    for variable in RANK_VARIABLES:
        setting = environment.get(variable)
        if setting is not None and _RANK.fullmatch(str(setting.value)):
            return int(str(setting.value))
    return None
