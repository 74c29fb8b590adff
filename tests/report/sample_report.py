"""A report built by hand: Qwen3-30B-A3B on one 8-GPU host, held back by exposed expert-parallel all-to-all.

Round numbers, so that a test can state what a page must show: of the 640 ms step, 150 ms is exposed all-to-all.
"""

from __future__ import annotations

from dataclasses import replace

from tests.report import sample_advice, sample_diagnosis
from tests.report.sample_diagnosis import MS
from tests.report.sample_kernels import HOST_WORK, KERNELS
from tests.report.sample_log import LOG
from tests.report.sample_recipe import RECIPE
from tests.report.sample_timeline import TIMELINE
from three_walls.facts.registry import DEFINITION_BY_NAME
from three_walls.model.buckets import BUCKET_BY_NAME, BUCKETS, SubWall, Wall
from three_walls.model.config import ConfigValue, RunConfig
from three_walls.model.fact import Fact, FactSheet, FactValue
from three_walls.model.finding import Overrides
from three_walls.model.report import (
    BudgetRow,
    CommunicationTime,
    DroppedStep,
    InputFile,
    RankReport,
    RankStep,
    Report,
    ReportWarning,
    StepSummary,
    UnclassifiedKernel,
    Verdict,
)

STEP_NS = 640 * MS

BUDGET_MS = {
    "grouped_gemm": 138,
    "gemm": 92,
    "attention": 58,
    "attention_unfused": 0,
    "permute": 31,
    "router": 9,
    "norm": 14,
    "elementwise": 36,
    "optimizer": 22,
    "unclassified": 3,
    "ep_all_to_all": 150,
    "all_gather": 12,
    "reduce_scatter": 17,
    "all_reduce": 2,
    "copy_d2d": 4,
    "copy_d2h_pageable": 1,
    "memset": 1,
    "host_blocked": 11,
    "launch_starved": 34,
    "idle_other": 5,
}


def _fact(name: str, value: FactValue, unit: str, missing_reason: str | None = None) -> Fact:
    """A fact with the definition that the product gives it."""
    return Fact(name, value, unit, missing_reason, DEFINITION_BY_NAME.get(name))


def sample_report() -> Report:
    """The report; every section of every renderer has something to show."""
    ranks = tuple(_rank(number) for number in range(8))
    return Report(
        tool_version="0.1.0",
        inputs=(
            InputFile("qwen3-30b-a3b.node0.sqlite", "9f2c41d0a7" + "b" * 54, "2025.3.1", "3.19.0"),
            InputFile("qwen3-30b-a3b.node1.sqlite", "1e77ac03f2" + "c" * 54, None, None),
        ),
        verdict=_verdict(),
        step=_step_summary(),
        ranks=ranks,
        budget=_budget_rows(),
        budget_of="rank 3, step 4: the median kept step of the rank that waited least for its peers",
        config=_config(),
        facts=_facts(),
        findings=sample_advice.findings(),
        plan=sample_advice.plan(),
        overrides=sample_advice.overrides(),
        warnings=(
            ReportWarning(
                "ambiguous_step_boundary",
                "Steps come from gaps between optimizer kernels: no NVTX ranges in the trace.",
            ),
            ReportWarning(
                "one_host_captured", "8 of 16 ranks were captured; waiting for the other host is not explained."
            ),
        ),
        unclassified=(
            UnclassifiedKernel("triton_poi_fused_add_mul_sigmoid_7", 2_100_000, 96),
            UnclassifiedKernel("void my_ext::rope_kernel<__nv_bfloat16>(...)", 900_000, 48),
        ),
        capabilities={
            "kernel launches": "yes",
            "NVTX ranges": "no NVTX_EVENTS table: profile with --trace=cuda,nvtx",
            "CUDA graph nodes": "yes",
            "memory usage": "no CUDA_GPU_MEMORY_USAGE_EVENTS table: profile with --cuda-memory-usage=true",
        },
        stragglers=sample_diagnosis.STRAGGLERS,
        waits=sample_diagnosis.waits(),
        alignment=sample_diagnosis.ALIGNMENT,
        moe_layers=sample_diagnosis.moe_layers(),
        overlap_slowdown=sample_diagnosis.OVERLAP_SLOWDOWN,
        recompute_layers=sample_diagnosis.RECOMPUTE_LAYERS,
        graph_coverage=sample_diagnosis.GRAPH_COVERAGE,
        efficiency=sample_diagnosis.EFFICIENCY,
        copies=sample_diagnosis.COPIES,
        log=LOG,
        known_good_recipe=RECIPE,
        kernels=KERNELS,
        host_work=HOST_WORK,
        timeline=TIMELINE,
    )


def abstained_report() -> Report:
    """No step was found: nothing is known, and the page must state that instead of showing zeros."""
    reason = "No steps were found: the trace holds neither NVTX step ranges nor optimizer kernels."
    return replace(
        sample_report(),
        verdict=Verdict(None, None, True, reason, None, None, None, None, {"memory": None, "communication": None}),
        step=StepSummary("none", 0, (), None, None, None),
        ranks=(),
        budget=(),
        budget_of="",
        findings=(),
        plan=(),
        overrides=Overrides("0.4.2", (), (), {}),
        facts=FactSheet.of([_fact("step_ns", None, "ns", "no steps were found")]),
        stragglers=(),
        waits=(),
        alignment=None,
        moe_layers=(),
        overlap_slowdown=(),
        recompute_layers=(),
        graph_coverage=None,
        efficiency=(),
        kernels=(),
        host_work=(),
        timeline=None,
        copies=(),
        log=None,
        known_good_recipe=None,
        no_recipe_reason="the GPU is not known, so no recipe is nearer than another",
    )


def without_plan(report: Report) -> Report:
    """A healthy run: rules were judged and none recommends an edit."""
    return replace(report, plan=(), overrides=Overrides("0.4.2", (), (), {}))


def _verdict() -> Verdict:
    return Verdict(
        wall=Wall.COMMUNICATION,
        sub_wall=None,
        abstained=False,
        reason="Exposed transfer takes 148 ms of the 640 ms step (23.1%), three times the host (45 ms, 7.0%).",
        step_ns=STEP_NS,
        runner_up_wall=Wall.COMPUTE_HOST,
        runner_up_sub_wall=SubWall.HOST,
        margin_fraction=0.161,
        recoverable_ns={
            "memory": 27 * MS,
            "communication": 148 * MS,
            "compute_host.compute": 0,
            "compute_host.host": 45 * MS,
        },
    )


def _step_summary() -> StepSummary:
    dropped = tuple(
        DroppedStep(rank, index, reason)
        for rank in range(8)
        for index, reason in ((0, "touches the start of the capture"), (7, "cut by the end of the capture"))
    )
    return StepSummary(
        "optimizer kernels", 48, dropped, 640 * MS, 631 * MS, 655 * MS, "kept steps touch no edge of the capture"
    )


def _budget_ns(rank: int, index: int) -> dict[str, int]:
    """The representative budget, moved a little between computing and waiting: other ranks arrive later."""
    moved = (rank - 3) * 2 * MS + (index - 4) * 300_000
    budget = {name: milliseconds * MS for name, milliseconds in BUDGET_MS.items()}
    budget["grouped_gemm"] -= moved
    budget["ep_all_to_all"] += 2 * moved
    return budget


def _rank(number: int) -> RankReport:
    exposed = _budget_ns(number, 4)["ep_all_to_all"]
    return RankReport(
        rank=number,
        host="node0",
        gpu="NVIDIA H100 80GB HBM3",
        device=number,
        input_name="qwen3-30b-a3b.node0.sqlite",
        steps=tuple(_rank_step(number, index) for index in range(8)),
        median_index=4,
        budget=_budget_ns(number, 4),
        communication={
            "ep_all_to_all": CommunicationTime(exposed + 21 * MS, exposed, 21 * MS),
            "all_gather": CommunicationTime(40 * MS, 12 * MS, 28 * MS),
            "reduce_scatter": CommunicationTime(55 * MS, 17 * MS, 38 * MS),
            "all_reduce": CommunicationTime(2 * MS, 2 * MS, 0),
        },
        gap_causes=sample_diagnosis.gap_causes(_budget_ns(number, 4)),
    )


def _rank_step(rank: int, index: int) -> RankStep:
    kept = index not in (0, 7)
    budget = _budget_ns(rank, index) if kept else {}
    start_ns = 5_000_000_000 + index * 660 * MS
    length = sum(budget.values()) or 655 * MS
    reason = "" if kept else "touches the start of the capture" if index == 0 else "cut by the end of the capture"
    return RankStep(index, start_ns, start_ns + length, kept, reason, budget)


def _budget_rows() -> tuple[BudgetRow, ...]:
    times = {bucket.name: BUDGET_MS.get(bucket.name, 0) * MS for bucket in BUCKETS}
    return tuple(
        BudgetRow(name, BUCKET_BY_NAME[name].group.value, ns, ns / STEP_NS, BUCKET_BY_NAME[name].definition)
        for name, ns in times.items()
    )


def _config() -> RunConfig:
    line = "command line"
    return RunConfig(
        values={
            "moe_token_dispatcher_type": ConfigValue("alltoall", line),
            "expert_model_parallel_size": ConfigValue(16, line),
            "num_moe_experts": ConfigValue(128, line),
            "moe_router_topk": ConfigValue(8, line),
            "moe_grouped_gemm": ConfigValue(True, line),
            "recompute_granularity": ConfigValue("selective", line),
            "recompute_modules": ConfigValue(("moe_act", "layernorm"), line),
            "cuda_graph_impl": ConfigValue("none", "Megatron-LM default"),
            "moe_flex_dispatcher_backend": ConfigValue(None, "Megatron-LM default"),
        },
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": ConfigValue("8", "environment")},
        dialect="megatron_lm",
        bridge_version="0.4.2",
    )


def _facts() -> FactSheet:
    return FactSheet.of(
        [
            _fact("step_ns", STEP_NS, "ns"),
            _fact("step_spread_ratio", 1.038, "ratio"),
            _fact("ranks_captured_count", 8, "count"),
            _fact("kernel_count", 18_432, "count"),
            _fact("compute_busy_ns", 403 * MS, "ns"),
            _fact("compute_busy_fraction", 403 / 640, "fraction"),
            _fact("ep_busy_ns", 171 * MS, "ns"),
            _fact("ep_exposed_ns", 150 * MS, "ns"),
            _fact("ep_exposed_fraction", 150 / 640, "fraction"),
            _fact("ep_hidden_ns", 21 * MS, "ns"),
            _fact("ep_transfer_exposed_ns", 119 * MS, "ns"),
            _fact("ep_spans_nodes", True, "flag"),
            _fact("ep_within_nvlink_domain", None, "flag", "the GPUs of the second host were not captured"),
            _fact("ep_internode_unique_copies_fraction", 0.25, "fraction"),
            _fact("gpu.name", "NVIDIA H100 80GB HBM3", "text"),
            _fact("gpu.memory_bytes", 80 * (1 << 30), "bytes"),
            _fact("recompute_ns", None, "ns", "no NVTX ranges and no attention kernels to count replays by"),
            _fact("config.moe_token_dispatcher_type", "alltoall", "config"),
        ]
    )
