"""What is advised on machines whose captures are not at hand: real captures, described as runs of these machines.

The GPU's name, its compute capability and the run's variables are replaced; the kernels and times stay those of H200.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.analyzed_samples import reads_sample
from tests.paths import SAMPLES
from three_walls.advice.finding import Finding, PlanStep
from three_walls.lib.fact import FactSheet
from three_walls.pipeline import _diagnose, _load_rule_base, _prepare_replays, measure_run
from three_walls.trace.run_request import RunRequest
from three_walls.trace.trace_files import plain_sqlite

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # cases of the rules say the same of each condition


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine, and the expert-parallel size of a run on it."""

    gpu: str
    capability: tuple[int, int]
    ranks_per_host: int
    expert_parallel: int
    variables: dict[str, str] = field(default_factory=dict)


EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "NCCL_PROTO": "simple"}
TCPXO = {
    "NCCL_FASTRAK_CTRL_DEV": "eth0",
    "NCCL_PROTO": "Simple",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CROSS_NIC": "0",
}
MACHINES = {
    "GB200 NVL72": Machine("NVIDIA GB200", (10, 0), 4, 64),
    "GB300 NVL72": Machine("NVIDIA GB300", (10, 3), 4, 64),
    "GB200 NVL36": Machine("NVIDIA GB200", (10, 0), 4, 32, {"NVLINK_DOMAIN_SIZE": "36"}),
    "GB300, two racks": Machine("NVIDIA GB300", (10, 3), 4, 64, {"NVLINK_DOMAIN_SIZE": "36"}),
    "B300, InfiniBand": Machine("NVIDIA B300 SXM6 AC", (10, 3), 8, 16, {"NCCL_IB_HCA": "mlx5"}),
    "B200, InfiniBand": Machine("NVIDIA B200", (10, 0), 8, 16, {"NCCL_IB_HCA": "mlx5"}),
    "H20, RoCE": Machine("NVIDIA H20", (9, 0), 8, 16, {"NCCL_IB_HCA": "mlx5_bond_0", "NCCL_IB_GID_INDEX": "3"}),
    "A100 PCIe": Machine("NVIDIA A100 80GB PCIe", (8, 0), 4, 4),
    "GH200, Slingshot": Machine("NVIDIA GH200 120GB", (9, 0), 4, 16, {"FI_PROVIDER": "cxi", "NCCL_PROTO": "^LL128"}),
    "H100, EFA": Machine("NVIDIA H100 80GB HBM3", (9, 0), 8, 16, EFA),
    "H100, TCPXO": Machine("NVIDIA H100 80GB HBM3", (9, 0), 8, 16, TCPXO),
    "H100, TCPX": Machine("NVIDIA H100 80GB HBM3", (9, 0), 8, 16, {"NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0"}),
    "H200, gIB": Machine("NVIDIA H200", (9, 0), 8, 16, {"NCCL_NET": "gIB"}),
    "L40S": Machine("NVIDIA L40S", (8, 9), 8, 8),
    "RTX PRO 6000": Machine("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 8, 8),
    "A800": Machine("NVIDIA A800-SXM4-80GB", (8, 0), 8, 16, {"NCCL_IB_HCA": "mlx5"}),
}


@cache
def unpack(sample: str) -> bytes:
    with plain_sqlite(SAMPLES / sample) as plain:
        return Path(plain).read_bytes()


def describe(folder: Path, sample: str, machine: Machine) -> Path:
    """The sample as a capture of ``machine``."""
    trace = folder / "described.sqlite"
    trace.write_bytes(unpack(sample))
    with closing(sqlite3.connect(trace)) as connection, connection:
        connection.execute(
            "UPDATE TARGET_INFO_GPU SET name = ?, computeMajor = ?, computeMinor = ?",
            (machine.gpu, *machine.capability),
        )
    return trace


class Advice(NamedTuple):
    """What a report says of the run, without what it shows of the step: that is the sample's."""

    facts: FactSheet
    findings: tuple[Finding, ...]
    plan: tuple[PlanStep, ...]


def advise_on(folder: Path, name: str, sample: str, *settings: str) -> Advice:
    """A run of many hosts on the machine of this name."""
    machine = MACHINES[name]
    world = 64 if machine.expert_parallel > 8 else 8
    stated = (
        f"env_vars.WORLD_SIZE={world}",
        f"env_vars.LOCAL_WORLD_SIZE={machine.ranks_per_host}",
        f"expert_model_parallel_size={machine.expert_parallel}",
        "num_moe_experts=128",
        f"global_batch_size={2 * world}",
        "env_vars.NCCL_P2P_DISABLE=0",
        *(f"env_vars.{variable}={value}" for variable, value in machine.variables.items()),
        *settings,
    )
    rule_base = _load_rule_base(None)
    run = measure_run(RunRequest((describe(folder, sample, machine),), settings=stated), lambda _: None)
    replayed = _prepare_replays(run, rule_base, None)
    diagnosis = _diagnose(rule_base, run, replayed, None, ("convergence-changing",))
    return Advice(replayed.facts, diagnosis.findings, diagnosis.plan)


def outcomes_of(report: Advice) -> dict[str, str]:
    return {finding.rule: str(finding.outcome) for finding in report.findings}


def edits_of(report: Advice, rule: str) -> dict[str, object]:
    return {edit.key: edit.to for finding in report.findings if finding.rule == rule for edit in finding.edits}


def blocks_of(report: Advice, rule: str) -> list[str]:
    return [note.name for finding in report.findings if finding.rule == rule for note in finding.blocked_by]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Advice]:
    folder = tmp_path_factory.mktemp("machines")
    return {name: advise_on(folder, name, "wide-slowlink-alltoall.sqlite.xz") for name in MACHINES}


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_every_machine_is_known_by_its_name(reports: dict[str, Advice]) -> None:
    unknown = {name for name, report in reports.items() if report.facts.get("gpu.family").value is None}
    assert unknown == set()


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_the_dispatcher_is_one_that_the_gpus_and_adapters_can_run(reports: dict[str, Advice]) -> None:
    advised = {
        (name, rule)
        for name, report in reports.items()
        for rule, outcome in outcomes_of(report).items()
        if rule.startswith("alltoall-to-") and outcome == "recommended"
    }
    expected = {
        ("GB200 NVL72", "alltoall-to-hybridep"),
        ("GB300 NVL72", "alltoall-to-hybridep"),
        ("GB200 NVL36", "alltoall-to-hybridep"),
        ("B300, InfiniBand", "alltoall-to-deepep"),
        ("B200, InfiniBand", "alltoall-to-deepep"),
        ("H20, RoCE", "alltoall-to-deepep"),
        ("H200, gIB", "alltoall-to-deepep"),
    }
    assert advised == expected
    for name in ("H100, EFA", "H100, TCPXO", "H100, TCPX"):
        assert blocks_of(reports[name], "alltoall-to-deepep") == ["adapters_can_be_driven"], name


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_hybridep_is_the_other_candidate_across_hosts_and_takes_the_place_of_deepep(
    reports: dict[str, Advice], tmp_path: Path
) -> None:
    across = "alltoall-to-hybridep-across-nodes"
    for name in ("B300, InfiniBand", "H20, RoCE", "H200, gIB"):
        assert outcomes_of(reports[name])[across] == "alternative", name
    for name in ("H100, EFA", "H100, TCPXO", "H100, TCPX"):
        assert blocks_of(reports[name], across) == ["adapters_can_be_driven"], name
    sizes = ("num_moe_experts=120", "expert_model_parallel_size=40", "env_vars.WORLD_SIZE=80", "global_batch_size=160")
    report = advise_on(tmp_path, "H20, RoCE", "wide-slowlink-alltoall.sqlite.xz", *sizes)
    assert blocks_of(report, "alltoall-to-deepep") == ["deep_ep_has_the_group_size"]
    assert across in [entry.rule for entry in report.plan]
    assert edits_of(report, across)["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "8"


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_hybridep_is_told_its_rack(reports: dict[str, Advice]) -> None:
    edits = edits_of(reports["GB200 NVL72"], "alltoall-to-hybridep")
    assert edits["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "64"
    assert edits["NVLINK_DOMAIN_SIZE"] == "72"
    assert edits["USE_MNNVL"] == "1"
    smaller = edits_of(reports["GB200 NVL36"], "alltoall-to-hybridep")
    assert smaller["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "32"
    assert "NVLINK_DOMAIN_SIZE" not in smaller, "the run states it"
    assert blocks_of(reports["GB300, two racks"], "alltoall-to-hybridep") == ["group_fits_nvlink_domain"]


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_switches_reduce_on_infiniband_alone(reports: dict[str, Advice]) -> None:
    assert outcomes_of(reports["B300, InfiniBand"])["sharp-in-switches"] == "recommended"
    for name in ("H20, RoCE", "H100, EFA", "H200, gIB"):
        assert blocks_of(reports[name], "sharp-in-switches") == ["adapters_are_infiniband"], name


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_no_protocol_or_algorithm_that_a_network_needs_is_unset(reports: dict[str, Advice]) -> None:
    for name in ("H100, EFA", "H100, TCPXO", "GH200, Slingshot"):
        assert outcomes_of(reports[name])["nccl-forced-settings"] != "recommended", name
    touched = {key for report in reports.values() for entry in report.plan for key in edits_of(report, entry.rule)}
    assert not {key for key in touched if key.startswith("NCCL_")}


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_hardware_queues_go_by_architecture(reports: dict[str, Advice]) -> None:
    queues = {
        name: edits_of(report, "ep-overlap").get("CUDA_DEVICE_MAX_CONNECTIONS")
        for name, report in reports.items()
        if outcomes_of(report).get("alltoall-to-deepep") != "recommended"
    }
    assert queues == {
        **dict.fromkeys(queues, "8"),
        **{name: "32" for name in queues if name.startswith("GB")},
    }


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_nvlink_is_missed_only_where_the_gpus_have_it(reports: dict[str, Advice]) -> None:
    found = {name for name, report in reports.items() if outcomes_of(report).get("slow-nvlink") == "found"}
    assert found == {"GB200 NVL72", "GB300 NVL72", "GB200 NVL36"}, "elsewhere groups cross domains, or have no NVLink"


@reads_sample("wide-slowlink-alltoall.sqlite.xz")
def test_attention_is_fused_on_every_gpu_for_which_cudnn_has_kernels(reports: dict[str, Advice]) -> None:
    assert {outcomes_of(report)["fused-attention"] for report in reports.values()} == {"recommended"}


PRECISIONS: dict[str, set[str]] = {
    "B200, InfiniBand": {"mxfp8-on-blackwell", "nvfp4-on-blackwell"},
    "H20, RoCE": {"fp8-blockwise-on-hopper", "fp8-current-scaling", "fp8-delayed-scaling"},
    "A800": set(),
    "L40S": {"fp8-current-scaling", "fp8-delayed-scaling"},
    "RTX PRO 6000": {"fp8-current-scaling", "fp8-delayed-scaling"},
}
"""Transformer Engine has MXFP8 on none but data-center Blackwell, and blockwise FP8 not on Ada."""


@reads_sample("te-wide")
@pytest.mark.parametrize("name", PRECISIONS)
def test_low_precision_goes_by_architecture(tmp_path: Path, name: str) -> None:
    settings = ("transformer_impl=transformer_engine", "bf16=true", "fp8=null", "fp4=null")
    report = advise_on(tmp_path, name, "te-wide/rank0.sqlite.xz", *settings)
    advised = {rule for rule, outcome in outcomes_of(report).items() if outcome == "recommended"}
    assert {rule for rule in advised if rule.startswith(("fp8-", "mxfp8-", "nvfp4-"))} == PRECISIONS[name]
