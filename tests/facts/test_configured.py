"""What the configuration asks for: whether the step shows it, and the cause where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace_builder import ADAM, GEMM, MEGATRON, POINTWISE, TraceBuilder
from three_walls import analyze
from three_walls.advice.finding import Finding, Outcome

pytestmark = pytest.mark.slow

MS = 1_000_000
REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
DEEPEP = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)"
ROPE = "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>(const __nv_bfloat16*)"
DENSE = (
    "pretrain_gpt.py --bf16 --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --use-distributed-optimizer"
)


def judged(folder: Path, rule: str, command: str, *kernels: str, hidden: bool = False, **environment: str) -> Finding:
    """Five steps of 100 ms: 60 ms of GEMMs, 10 ms of each of ``kernels``, an update. ``hidden``: beside the GEMMs."""
    builder = TraceBuilder().launched_as(command, RANK="0", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8", **environment)
    for step in range(5):
        at = step * 100 * MS + 1_000
        builder.kernel(GEMM, at, at + 60 * MS, launched=at - 500)
        for place, name in enumerate(kernels):
            begin = at + (10 if hidden else 60) * MS + 10 * place * MS
            builder.kernel(name, begin, begin + 10 * MS, stream=20, launched=at - 400)
        builder.kernel(ADAM, at + 90 * MS, at + 100 * MS - 1_000, launched=at - 300)
    report = analyze(builder.write(folder / f"{len(list(folder.iterdir()))}.sqlite"))
    return next(finding for finding in report.findings if finding.rule == rule)


def test_gradients_that_one_hardware_queue_keeps_from_overlapping_are_not_seen_to_overlap(tmp_path: Path) -> None:
    rule, asked = "data-parallel-overlap-not-seen", f"{DENSE} --overlap-grad-reduce --overlap-param-gather"
    found = judged(tmp_path, rule, asked, REDUCE, CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert (found.outcome, found.configured) == (Outcome.FOUND, "overlap of gradient reduction and parameter gathering")
    assert found.cause.startswith("one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1)")
    more_queues = judged(tmp_path, "device-max-connections", asked, REDUCE, CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert [(edit.key, edit.to) for edit in more_queues.edits] == [("CUDA_DEVICE_MAX_CONNECTIONS", "32")]


def test_the_timing_of_collectives_is_named_as_the_cause(tmp_path: Path) -> None:
    rule = "data-parallel-overlap-not-seen"
    command = f"{DENSE} --overlap-grad-reduce --overlap-param-gather"
    found = judged(tmp_path, rule, command, REDUCE, TORCH_NCCL_ENABLE_TIMING="1")
    assert found.cause.startswith("TORCH_NCCL_ENABLE_TIMING=1")
    assert judged(tmp_path, rule, command, REDUCE).cause == ""


def test_an_overlap_that_happens_is_seen_and_one_that_nobody_asked_for_is_not_looked_for(tmp_path: Path) -> None:
    rule = "data-parallel-overlap-not-seen"
    seen = judged(
        tmp_path, rule, f"{DENSE} --overlap-grad-reduce", REDUCE, hidden=True, CUDA_DEVICE_MAX_CONNECTIONS="1"
    )
    assert (seen.outcome, seen.configured != "", seen.cause) == (Outcome.NOT_NEEDED, True, "")
    unasked = judged(tmp_path, rule, DENSE, REDUCE, CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert (unasked.outcome, unasked.configured) == (Outcome.NOT_APPLICABLE, "")


@pytest.mark.parametrize(("kernels", "outcome"), [((), Outcome.FOUND), ((DEEPEP,), Outcome.NOT_NEEDED)])
def test_a_dispatcher_is_seen_by_its_kernels(tmp_path: Path, kernels: tuple[str, ...], outcome: Outcome) -> None:
    command = MEGATRON.replace("dispatcher-type alltoall", "dispatcher-type flex") + " --expert-model-parallel-size 8"
    found = judged(tmp_path, "flex-dispatcher-not-seen", command, *kernels)
    assert (found.outcome, found.configured) == (outcome, "the flex dispatcher (DeepEP, HybridEP)")


def test_a_backend_without_the_flex_dispatcher_is_named_as_the_cause(tmp_path: Path) -> None:
    command = f"{MEGATRON} --expert-model-parallel-size 8 --moe-flex-dispatcher-backend deepep"
    found = judged(tmp_path, "flex-dispatcher-not-seen", command)
    assert found.cause == "moe_flex_dispatcher_backend is set, but moe_token_dispatcher_type is not flex"


@pytest.mark.parametrize(("kernel", "outcome"), [(POINTWISE, Outcome.FOUND), (ROPE, Outcome.NOT_NEEDED)])
def test_a_fusion_is_seen_by_its_kernels(tmp_path: Path, kernel: str, outcome: Outcome) -> None:
    command = f"{DENSE} --position-embedding-type rope --transformer-impl transformer_engine"
    found = judged(tmp_path, "fusions-not-seen", command, kernel)
    assert found.outcome is outcome
    assert ("apply_rope_fusion" in found.reason.replace(" ", "_")) is (outcome is Outcome.FOUND)


def test_graphs_that_are_recorded_and_never_launched_are_named(tmp_path: Path) -> None:
    builder = TraceBuilder().launched_as(f"{DENSE} --cuda-graph-impl local", RANK="0", WORLD_SIZE="1")
    builder.steps(5, length=100 * MS)
    builder.api("cudaStreamBeginCapture_v10000", 250 * MS, 250 * MS + 1_000)
    for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row["graphNodeId"] = 0
    report = analyze(builder.write(tmp_path / "rank0.sqlite"))
    found = next(finding for finding in report.findings if finding.rule == "graphs-not-replayed")
    assert (found.outcome, found.configured) == (Outcome.FOUND, "CUDA graphs")
    assert found.cause == "graphs are recorded within the capture, and none is launched in the step"
