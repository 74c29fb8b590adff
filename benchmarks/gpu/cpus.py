"""CPUs for each rank: none shared, near its GPU where the system tells, so that a base drifts less.

Every GPU of the machine has its share, also those that are not trained on: two commands at once do not meet.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

LEAST_CPUS = 4
"""A rank has a thread for each pass, one of NCCL that is always busy, and one that loads data."""


def share_cpus(
    ranks_count: int, environment: Mapping[str, str] = os.environ, system: Path = Path("/sys")
) -> tuple[frozenset[int], ...] | None:
    """The CPUs of each rank; None where there are fewer than LEAST_CPUS for each."""
    gpus = list_gpus()
    own = choose_gpus(gpus, ranks_count, environment.get("CUDA_VISIBLE_DEVICES"))
    if own is None:  # nothing is known of the GPUs
        gpus, own = [("", "", "")] * ranks_count, range(ranks_count)
    allowed = frozenset(os.sched_getaffinity(0))
    near = [read_near(bus, system) & allowed or allowed for _, _, bus in gpus]
    if any(a != b and a & b for a in near for b in near):
        near = [allowed] * len(gpus)
    shares = [split(cpus, near[:gpu].count(cpus), near.count(cpus), system) for gpu, cpus in enumerate(near)]
    chosen = tuple(shares[gpu] for gpu in own)
    return chosen if all(len(share) >= LEAST_CPUS for share in chosen) else None


def list_gpus() -> list[tuple[str, str, str]]:
    """Index, UUID and bus address of each GPU of the machine; nothing where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    rows = [tuple(cell.strip() for cell in line.split(",")) for line in lines]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def choose_gpus(gpus: Sequence[tuple[str, str, str]], count: int, visible: str | None) -> list[int] | None:
    """Which of ``gpus`` each rank uses, as CUDA_VISIBLE_DEVICES says; None where they are not among them."""
    wanted = visible.split(",") if visible else [index for index, _, _ in gpus]
    places = [
        [place for place, (index, uuid, _) in enumerate(gpus) if name == index or (name and uuid.startswith(name))]
        for name in map(str.strip, wanted[:count])
    ]
    return [found[0] for found in places] if len(places) == count and all(len(found) == 1 for found in places) else None


def read_near(bus: str, system: Path) -> frozenset[int]:
    """The CPUs of the socket to which the GPU is attached; none where the system does not tell."""
    domain, _, rest = bus.lower().partition(":")
    try:
        device = system / "bus" / "pci" / "devices" / f"{int(domain, 16):04x}:{rest}"
        return parse_cpus((device / "local_cpulist").read_text())
    except (OSError, ValueError):
        return frozenset()


def split(cpus: frozenset[int], number: int, parts: int, system: Path) -> frozenset[int]:
    """Part ``number`` of ``cpus``, neighbours by number; the threads of a core stay together."""
    cores = sorted({min(core): core for core in (read_core(cpu, system) & cpus for cpu in cpus)}.items())
    mine = cores[number * len(cores) // parts : (number + 1) * len(cores) // parts]
    return frozenset(cpu for _, core in mine for cpu in core)


def read_core(cpu: int, system: Path) -> frozenset[int]:
    """The threads of the core that ``cpu`` is one of."""
    siblings = system / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    return parse_cpus(siblings.read_text()) if siblings.exists() else frozenset((cpu,))


def parse_cpus(text: str) -> frozenset[int]:
    """A list of CPUs as Linux writes it: ``0-3,8``."""
    spans = [span.partition("-") for span in text.strip().split(",") if span]
    return frozenset(cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))


def show_cpus(cpus: Iterable[int]) -> str:
    """The opposite of ``parse_cpus``."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
