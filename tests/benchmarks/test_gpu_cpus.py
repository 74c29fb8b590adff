"""Which CPUs benchmarks/gpu gives the ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

KIT = REPOSITORY / "benchmarks" / "gpu"
sys.path.insert(0, str(KIT))

import case as cases  # noqa: E402 - scripts beside the package
import cpus  # noqa: E402
import run_cases as kit  # noqa: E402

SOCKETS = {0: "0-7,16-23", 1: "8-15,24-31"}
"""Two sockets of eight cores; CPU n and CPU n + 16 are the threads of a core."""

Machine = Callable[..., tuple[str, ...] | None]


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Share the CPUs of a machine with GPUs on the named sockets; None is a GPU whose socket is not told."""

    def share_cpus(
        sockets: Collection[int | None],
        ranks: int,
        environment: Mapping[str, str] | None = None,
        allowed: Collection[int] = range(32),
        listed: Mapping[int, str] = SOCKETS,
    ) -> tuple[str, ...] | None:
        lines = []
        for gpu, number in enumerate(sockets):
            lines.append(f"{gpu}, GPU-{gpu}abc, 00000000:{gpu:02X}:00.0")
            device = tmp_path / "bus" / "pci" / "devices" / f"0000:{gpu:02x}:00.0"
            if number is not None:
                device.mkdir(parents=True)
                (device / "local_cpulist").write_text(listed[number] + "\n")
        for cpu in range(32):
            topology = tmp_path / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{cpu % 16},{cpu % 16 + 16}\n")
        smi = tmp_path / "nvidia-smi"
        smi.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines) + f"exit {int(not lines)}\n")
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
        shares = cpus.share_cpus(ranks, environment or {}, tmp_path)
        return shares and tuple(map(cpus.show_cpus, shares))

    return share_cpus


def test_ranks_share_the_cores_of_their_socket_and_no_core(share: Machine) -> None:
    assert share([0, 0, 1, 1], ranks=4) == ("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31")


def test_gpus_that_are_not_trained_on_keep_their_cpus(share: Machine) -> None:
    assert share([0, 0, 1, 1], ranks=2, environment={"CUDA_VISIBLE_DEVICES": "2,1"}) == ("8-11,24-27", "4-7,20-23")


def test_a_gpu_may_be_named_by_its_uuid(share: Machine) -> None:
    assert share([0, 1], ranks=1, environment={"CUDA_VISIBLE_DEVICES": "GPU-1abc"}) == ("8-15,24-31",)


def test_without_known_sockets_all_cpus_are_shared(share: Machine) -> None:
    assert share([None, None], ranks=2) == ("0-7,16-23", "8-15,24-31")


def test_sockets_that_overlap_are_not_believed(share: Machine) -> None:
    assert share([0, 1], ranks=2, listed={0: "0-15", 1: "8-31"}) == ("0-7,16-23", "8-15,24-31")


def test_without_gpus_that_are_listed_each_rank_has_a_share(share: Machine) -> None:
    assert share([], ranks=4) == ("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31")


def test_cpus_that_the_command_may_not_use_are_given_to_no_rank(share: Machine) -> None:
    assert share([0, 1], ranks=2, allowed=[*range(4), *range(8, 12)]) == ("0-3", "8-11")


def test_too_few_cpus_for_each_rank_are_not_shared_at_all(share: Machine) -> None:
    assert share([0, 1], ranks=2, allowed=[*range(3), *range(8, 12)]) is None


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8", "1,3,5-6"])
def test_lists_of_cpus_are_read_as_they_are_written(text: str) -> None:
    assert cpus.show_cpus(cpus.parse_cpus(f"{text}\n")) == text


WORKER = """
import os, sys
from pathlib import Path
folder = Path(sys.argv[3])
names = ("RANK", "NCCL_P2P_DISABLE", "CUDA_DEVICE_MAX_CONNECTIONS", "KEPT")
(folder / "found").write_text(repr(([os.environ.get(name) for name in names], sorted(os.sched_getaffinity(0)))))
"""


@pytest.mark.parametrize("pinned", [True, False])
def test_a_rank_begins_with_its_environment_and_on_its_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    """Of the variables the edit's count before the case's, and those before the command's."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "common.yaml").write_text("{recipes: r, recipe: r, iterations: 8, warmup: 2}")
    (tmp_path / "small.yaml").write_text(
        "{gpus: 2, environment: {NCCL_P2P_DISABLE: '1', CUDA_DEVICE_MAX_CONNECTIONS: '1'}}"
    )
    for module in (kit, cases):
        monkeypatch.setattr(module, "HERE", tmp_path)
    for name in ("NCCL_P2P_DISABLE", "CUDA_DEVICE_MAX_CONNECTIONS", "KEPT"):
        monkeypatch.setenv(name, "of the command")
    own = sorted(os.sched_getaffinity(0))
    pins = [{own[0]}, {own[-1]}] if pinned else None
    edit = cases.Edit("overlap", environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
    workers = kit.Workers(cases.read_case(tmp_path / "small.yaml"), tmp_path / "out", pins, edit)
    workers.stop()
    for rank, folder in enumerate(workers.folders):
        found = ([str(rank), "1", "32", "of the command"], [own[-rank]] if pinned else own)
        assert (folder / "found").read_text() == repr(found)
    assert sorted(os.sched_getaffinity(0)) == own
