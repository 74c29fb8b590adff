"""Findings of the sample report: two edits planned, the other rules undecided or not needed."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample_diagnosis import MS
from three_walls.model.buckets import SubWall, Wall
from three_walls.model.finding import Bounds, Finding, Gain, Note, Outcome, Overrides, PlannedEdit, PlanStep

_DEEPEP_EDITS = (
    PlannedEdit("moe_token_dispatcher_type", "alltoall", "flex", "config", False),
    PlannedEdit("moe_flex_dispatcher_backend", None, "deepep", "config", False),
    PlannedEdit(
        "moe_router_dtype", None, "fp32", "config", True, "DeepEP takes float32 probabilities and casts others."
    ),
)

_GRAPH_EDITS = (
    PlannedEdit("cuda_graph_impl", "none", "transformer_engine", "config", False),
    PlannedEdit("cuda_graph_scope", None, ("attn", "moe_router", "moe_preprocess"), "config", False),
    PlannedEdit("CUDA_DEVICE_MAX_CONNECTIONS", "8", "32", "env", False),
)


def _deepep() -> Finding:
    return Finding(
        rule="exposed-ep-alltoall-deepep",
        title="Dispatch expert tokens with DeepEP instead of NCCL all-to-all",
        outcome=Outcome.RECOMMENDED,
        wall=Wall.COMMUNICATION,
        sub_wall=None,
        lever="moe_dispatcher",
        reason="ep_exposed_fraction is 23.4% (at least 5.0%) with moe_token_dispatcher_type alltoall across hosts.",
        missing=(),
        blocked_by=(),
        confirm_first=(
            Note(
                "deep_ep_is_installed", "deep_ep imports in the training container", "bridge:docs/training/moe.md:303"
            ),
            Note("rdma_is_ready", "IBGDA is on between hosts and each GPU has its own NIC", "bridge:docs/perf.md:535"),
        ),
        edits=_DEEPEP_EDITS,
        gain_ns=Gain(0, 45 * MS, 89 * MS, "modelled", "Unique copies per host over one copy per expert: 0.25."),
        how_to_verify="Profile the same steps again: deep_ep dispatch and combine replace the NCCL kernels.",
        why_it_matters="The plain dispatcher sends one copy of a token per chosen expert over the same slow link.",
        side_effects=("Dispatch and combine occupy 20 SMs by default.",),
        evidence_for=(
            Note("", "Removes redundant tokens across nodes.", "mcore:megatron/core/transformer/moe/README.md:310"),
        ),
        evidence_against=(
            Note("", "The 256xH100 Qwen3-235B recipe keeps alltoall.", "bridge:docs/training/moe.md:299"),
        ),
    )


def _graphs() -> Finding:
    return Finding(
        rule="launch-starved-cuda-graphs",
        title="Replay attention and routing as CUDA graphs",
        outcome=Outcome.RECOMMENDED,
        wall=Wall.COMPUTE_HOST,
        sub_wall=SubWall.HOST,
        lever="cuda_graphs",
        reason="launch_starved_fraction is 5.3% (at least 3.0%) and no CUDA graph runs.",
        missing=(),
        blocked_by=(),
        confirm_first=(
            Note("static_shapes", "sequence length and micro-batch size do not change", "mcore:README.md:12"),
        ),
        edits=_GRAPH_EDITS,
        gain_ns=Gain(8 * MS, 19 * MS, 31 * MS, "range", "At most the launch-starved time of the graphed modules."),
        how_to_verify="The launch-starved bucket shrinks; the loss curve is unchanged over 100 steps.",
        why_it_matters="Python launches kernels more slowly than the device finishes them.",
    )


_PYTHON = ("cfg.model.moe_router_dtype = 'fp32'",)


def plan() -> tuple[PlanStep, ...]:
    return (
        PlanStep(
            order=1,
            rule=_deepep().rule,
            finding=_deepep(),
            edits=_DEEPEP_EDITS,
            gain_ns=_deepep().gain_ns,
            step_after_ns=Bounds(523 * MS, 612 * MS),
            overrides=replace(
                overrides(), bridge=overrides().bridge[:3], megatron_lm=overrides().megatron_lm[:3], python=_PYTHON
            ),
        ),
        PlanStep(
            order=2,
            rule=_graphs().rule,
            finding=_graphs(),
            edits=_GRAPH_EDITS,
            gain_ns=_graphs().gain_ns,
            step_after_ns=Bounds(492 * MS, 604 * MS),
            overrides=Overrides("0.4.2", overrides().bridge[3:], overrides().megatron_lm[3:], {}),
            differing_edits=_GRAPH_EDITS[:1],
        ),
    )


def _other(rule: str, title: str, outcome: Outcome, reason: str, wall: Wall = Wall.COMMUNICATION) -> Finding:
    gain = Gain(None, None, None, "range", "Not estimated: the rule does not apply now.")
    return Finding(rule, title, outcome, wall, None, rule, reason, (), (), (), (), gain)


def findings() -> tuple[Finding, ...]:
    overlap = replace(
        _other(
            "hide-ep-under-compute",
            "Overlap expert communication with the other micro-batch",
            Outcome.BLOCKED,
            "A requirement fails.",
        ),
        blocked_by=(Note("torch_2_6", "needs PyTorch 2.6 or newer; the run has 2.5.1", "mcore:arguments.py:1"),),
        gain_ns=Gain(20 * MS, 60 * MS, 119 * MS, "range"),
        edits=(PlannedEdit("overlap_moe_expert_parallel_comm", False, True, "config", False),),
    )
    recompute = replace(
        _other("spare-recompute", "Recompute less", Outcome.UNKNOWN, "A fact is missing.", Wall.MEMORY),
        missing=("recompute_ns",),
    )
    hybridep = _other(
        "hybridep-on-nvl72",
        "Dispatch with HybridEP",
        Outcome.NOT_APPLICABLE,
        "gpu.sm is sm_90, the rule is for sm_100.",
    )
    alternative = replace(
        _other("hybridep-hopper", "Dispatch with HybridEP on Hopper", Outcome.ALTERNATIVE, "DeepEP gains more here."),
        gain_ns=Gain(0, 30 * MS, 70 * MS, "modelled"),
    )
    healthy = _other(
        "unfused-attention", "Use fused attention", Outcome.NOT_NEEDED, "attention_unfused_fraction is 0%."
    )
    return (_deepep(), _graphs(), overlap, recompute, alternative, healthy, hybridep)


def overrides() -> Overrides:
    return Overrides(
        bridge_version="0.4.2",
        bridge=(
            "model.moe_token_dispatcher_type=flex",
            "model.moe_flex_dispatcher_backend=deepep",
            "model.moe_router_dtype=fp32",
            "model.cuda_graph_impl=transformer_engine",
            "model.cuda_graph_scope=[attn,moe_router,moe_preprocess]",
        ),
        megatron_lm=(
            "--moe-token-dispatcher-type flex",
            "--moe-flex-dispatcher-backend deepep",
            "--moe-router-dtype fp32",
            "--cuda-graph-impl transformer_engine",
            "--cuda-graph-scope attn moe_router moe_preprocess",
        ),
        env={"CUDA_DEVICE_MAX_CONNECTIONS": "32"},
        notes=("Megatron-LM: remove --moe-shared-expert-overlap",),
    )
