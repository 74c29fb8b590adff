"""The rank of this process, and the directory of its job, by the variables of the launcher."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables of the rank and of the number of ranks: torchrun's, srun's, those of Open MPI and of MPICH."""
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_LONGEST_NAME = 64
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """One launch, as all of its ranks see it."""

    rank: int
    world: int | None
    """Number of ranks, where the launcher states it."""
    name: str
    """The same in all ranks of a launch, and different in launches at the same time: a name of a directory."""

    @property
    def last_rank(self) -> int:
        """Megatron prints the iteration lines there."""
        return self.world - 1 if self.world else self.rank


def read_job(environment: Mapping[str, str]) -> Job:
    """The job by ``environment``; a program that no launcher started is rank 0 of 1."""
    for rank, world in _RANKS:
        if _NUMBER.fullmatch(environment.get(rank, "")):
            size = environment.get(world, "")
            return Job(int(environment[rank]), int(size) if _NUMBER.fullmatch(size) else None, _name_job(environment))
    return Job(0, 1, _name_job(environment))


def find_gpu(environment: Mapping[str, str]) -> str | None:
    """The number of this rank's GPU on its host; None where CUDA_VISIBLE_DEVICES does not name it by a number."""
    local = next((environment[name] for name in _LOCAL_RANKS if _NUMBER.fullmatch(environment.get(name, ""))), "0")
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if not visible:
        return local
    numbers = [number.strip() for number in visible.split(",")]
    place = int(local) if len(numbers) > 1 else 0  # a launcher may show each rank its own GPU alone
    return numbers[place] if place < len(numbers) and _NUMBER.fullmatch(numbers[place]) else None


def _name_job(environment: Mapping[str, str]) -> str:
    """The launcher's own name of the launch. torchrun's is ``none`` unless the user gives one; then its address is."""
    if slurm := environment.get("SLURM_JOB_ID"):
        name = f"slurm-{slurm}.{environment.get('SLURM_STEP_ID', '0')}"
    elif environment.get("TORCHELASTIC_RUN_ID", "none") not in ("none", ""):
        name = f"run-{environment['TORCHELASTIC_RUN_ID']}"
    elif "MASTER_PORT" in environment:
        address = f"{environment.get('MASTER_ADDR')}:{environment['MASTER_PORT']}"
        name = f"run-{hashlib.sha256(address.encode()).hexdigest()[:8]}"
    else:
        name = "run"
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_LONGEST_NAME]


def make_directory(out: Path, job: Job) -> tuple[Path, int]:
    """The directory of this attempt of ``job`` under ``out``, and the rank's log in it, opened for writing.

    A repeated attempt (a restart, or the same command again) gets a directory of its own: ``NAME``, ``NAME-2``, ...
    Each rank takes the first one in which it has no log yet, so that ranks agree without talking. Raises OSError.
    """
    for attempt in range(1, _MOST_ATTEMPTS):
        directory = out / (job.name if attempt == 1 else f"{job.name}-{attempt}")
        directory.mkdir(parents=True, exist_ok=True)
        try:
            return directory, os.open(log_path(directory, job.rank), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            continue
    raise OSError(0, f"{_MOST_ATTEMPTS} earlier attempts", str(out))


def log_path(directory: Path, rank: int) -> Path:
    """Where the output of ``rank`` goes."""
    return directory / f"rank{rank}.log"
