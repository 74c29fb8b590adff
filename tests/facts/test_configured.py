"""What the configuration asks for: whether the step shows it, and the cause where it does not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.trace_builder import ADAM, GEMM, MEGATRON, POINTWISE, TraceBuilder
from three_walls import analyze
from three_walls.advice.finding import Finding, Outcome
from three_walls.advice.format.conditions import KnownFacts
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.judge import judge_safely
from three_walls.advice.testing.rule_cases import sheet_of
from three_walls.facts.configured import MINIMUM_WEIGHT_BLOCKS, experts_run_grouped, separate_weight_additions_count
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.measurement import known
from three_walls.step.operators import Operators, nest_operators
from three_walls.trace.schemas import HOST_RANGES

pytestmark = pytest.mark.slow

MS = 1_000_000
REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
DEEPEP = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)"
ROPE = "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>(const __nv_bfloat16*)"
DENSE = (
    "pretrain_gpt.py --bf16 --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --use-distributed-optimizer"
)


def judged(
    folder: Path,
    rule: str,
    command: str,
    *kernels: str,
    hidden: bool = False,
    inside: str = "",
    gemm: str = GEMM,
    graph_node: int = 0,
    **environment: str,
) -> Finding:
    """Five steps of 100 ms: 60 ms of GEMMs, 10 ms of each of ``kernels``, an update.

    ``hidden``: beside the GEMMs. ``inside``: the range around the launches of ``kernels``.
    ``graph_node``: of the update.
    """
    builder = TraceBuilder().launched_as(command, RANK="0", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8", **environment)
    for step in range(5):
        at = step * 100 * MS + 1_000
        builder.kernel(gemm, at, at + 60 * MS, launched=at - 500)
        if inside:
            builder.nvtx(inside, at - 410, at - 350)
        for place, name in enumerate(kernels):
            begin = at + (10 if hidden else 60) * MS + 10 * place * MS
            builder.kernel(name, begin, begin + 10 * MS, stream=20, launched=at - 400)
        builder.kernel(ADAM, at + 90 * MS, at + 100 * MS - 1_000, launched=at - 300, node=graph_node)
    report = analyze(builder.write(folder / f"{len(list(folder.iterdir()))}.sqlite"))
    return next(finding for finding in report.findings if finding.rule == rule)


def test_gradients_that_one_hardware_queue_keeps_from_overlapping_are_not_seen_to_overlap(tmp_path: Path) -> None:
    rule, asked = "data-parallel-overlap-not-seen", f"{DENSE} --overlap-grad-reduce --overlap-param-gather"
    found = judged(tmp_path, rule, asked, REDUCE, CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert (found.outcome, found.configured) == (Outcome.FOUND, "overlap of gradient reduction and parameter gathering")
    assert found.cause.startswith("one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1)")
    more_queues = judged(tmp_path, "device-max-connections", asked, REDUCE, CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert [(edit.key, edit.to) for edit in more_queues.edits] == [("CUDA_DEVICE_MAX_CONNECTIONS", "8")]


@pytest.mark.parametrize(
    ("gpu", "tensor", "is_named"), [("sm_90", 1, True), ("sm_90", 4, False), ("sm_80", 4, False), ("sm_100", 4, True)]
)
def test_one_queue_is_no_cause_where_tensor_parallelism_needs_it(gpu: str, tensor: int, is_named: bool) -> None:
    rule = next(rule for rule in load_rule_base(DEFINITIONS).rules if rule.id == "data-parallel-overlap-not-seen")
    run = {"data_parallel_size": 8, "dp_hidden_of_busy_fraction": 0.03, "dp_exposed_fraction": 0.08}
    run |= {"dp_busy_fraction": 0.1, "dp_exposed_ns": 80 * MS, "dp_cover_ns": 60 * MS, "step_ns": 1000 * MS}
    run |= {"config.overlap_grad_reduce": True, "config.overlap_param_gather": True, "config.context_parallel_size": 1}
    run |= {"env.CUDA_DEVICE_MAX_CONNECTIONS": "1", "gpu.sm": gpu, "config.tensor_model_parallel_size": tensor}
    found = judge_safely(rule, sheet_of(run, KnownFacts.of(DEFINITIONS)))
    assert (found.outcome, found.cause.startswith("one hardware queue")) == (Outcome.FOUND, is_named)


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
    assert (found.outcome, found.configured) == (outcome, "the flex dispatcher (DeepEP, HybridEP, NCCL EP)")


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


def ranges(*texts: str) -> Operators:
    rows = [{"thread": 1, "start_ns": 0, "end_ns": 9, "text": text} for text in texts]
    return nest_operators(
        pl.DataFrame(rows, schema={name: HOST_RANGES[name] for name in ("thread", "start_ns", "end_ns", "text")})
    )


def experts(*kernels: tuple[str, int]) -> pl.DataFrame:
    """Category and stream of the experts' GEMMs."""
    return pl.DataFrame(kernels, schema=["category", "stream"], orient="row").with_columns(part=pl.lit("expert_gemm"))


def test_experts_on_several_streams_or_in_one_kernel_are_grouped() -> None:
    assert experts_run_grouped(experts(("gemm", 7), ("gemm", 8))).value is True
    assert experts_run_grouped(experts(("grouped_gemm", 7))).value is True


def test_experts_one_after_another_are_not_grouped_and_no_experts_are_unknown() -> None:
    assert experts_run_grouped(experts(("gemm", 7), ("gemm", 7))).value is False
    assert experts_run_grouped(experts().cast({"stream": pl.Int64})).value is None


@pytest.mark.parametrize(("node", "outcome"), [(0, Outcome.FOUND), (12, Outcome.NOT_NEEDED)])
def test_a_graph_of_the_optimizer_is_seen_by_its_kernels(tmp_path: Path, node: int, outcome: Outcome) -> None:
    found = judged(tmp_path, "optimizer-graph-not-seen", f"{DENSE} --optimizer-cuda-graph", graph_node=node)
    assert (found.outcome, found.configured) == (outcome, "CUDA graph of the optimizer")
    assert found.cause == ""
    unasked = judged(tmp_path, "optimizer-graph-not-seen", DENSE, graph_node=node)
    assert (unasked.outcome, unasked.configured) == (Outcome.NOT_APPLICABLE, "")


@pytest.mark.parametrize(
    ("kernel", "outcome"),
    [
        (POINTWISE, Outcome.FOUND),
        ("triton_red_fused_copy__exp_sub_sum_unsqueeze_2", Outcome.NOT_NEEDED),
        ("cross_entropy_forward_kernel", Outcome.NOT_NEEDED),
    ],
)
def test_a_fused_loss_is_seen_by_the_kernels_inside_it(tmp_path: Path, kernel: str, outcome: Outcome) -> None:
    command, loss = f"{DENSE} --cross-entropy-loss-fusion", "_VocabParallelCrossEntropy, seq = 1, op_id = 1"
    found = judged(tmp_path, "loss-fusion-not-seen", command, kernel, inside=loss)
    assert (found.outcome, found.cause) == (outcome, "")


def test_a_switched_off_compiler_is_named_as_the_cause_of_an_unfused_loss(tmp_path: Path) -> None:
    command, loss = f"{DENSE} --cross-entropy-loss-fusion", "_VocabParallelCrossEntropy, seq = 1, op_id = 1"
    found = judged(tmp_path, "loss-fusion-not-seen", command, POINTWISE, inside=loss, TORCHDYNAMO_DISABLE="1")
    assert found.cause.startswith("the environment switches torch.compile off")


def test_a_loss_that_no_range_names_is_not_said_to_be_unfused(tmp_path: Path) -> None:
    found = judged(tmp_path, "loss-fusion-not-seen", f"{DENSE} --cross-entropy-loss-fusion", POINTWISE)
    assert found.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("module", "blocks", "operator", "count"),
    [
        ("experts", MINIMUM_WEIGHT_BLOCKS, "wgrad_accumulation", 1),
        ("experts", MINIMUM_WEIGHT_BLOCKS, None, 0),
        ("attention", MINIMUM_WEIGHT_BLOCKS - 1, "wgrad_accumulation", 0),  # of a norm
        ("router", 10_000, "wgrad_accumulation", 0),
        ("outside", 10_000, "wgrad_accumulation", 0),  # of an embedding
        (None, 10_000, "wgrad_accumulation", 0),
    ],
)
def test_only_additions_of_weight_matrices_of_layers_contradict_their_fusion(
    module: str | None, blocks: int, operator: str | None, count: int
) -> None:
    addition = pl.DataFrame(
        {"module": [module], "grid_x": [blocks], "grid_y": [1], "grid_z": [1], "operator": [operator]},
        schema_overrides={"module": pl.String, "operator": pl.String},
    )
    assert separate_weight_additions_count(addition, ranges("aten::add_"), known(0.0)).value == count


def test_without_ranges_of_operators_nothing_is_said_about_accumulation() -> None:
    assert separate_weight_additions_count(pl.DataFrame(), ranges(), known(0.0)).value is None


BLOCKWISE = "void transformer_engine::block_scaled_1d_cast_transpose_kernel<true, float, __nv_bfloat16, __nv_fp8_e4m3>"
CURRENT = "transformer_engine::compute_scale_from_amax_kernel(const float *, float *)"
FP8_GEMM = "nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_coopA_algo2_Ablk128_Bvec128_TN"


@pytest.mark.parametrize(
    ("kernels", "gemm", "reason"),
    [
        ((), GEMM, "FP8"),
        ((CURRENT,), FP8_GEMM, "FP8 by the blockwise recipe"),
        ((BLOCKWISE,), FP8_GEMM, None),
        ((), FP8_GEMM, None),
    ],
)
def test_a_number_format_is_seen_by_its_casts_and_gemms(
    tmp_path: Path, kernels: tuple[str, ...], gemm: str, reason: str | None
) -> None:
    command = f"{DENSE} --fp8-format hybrid --fp8-recipe blockwise"
    found = judged(tmp_path, "low-precision-not-seen", command, *kernels, gemm=gemm)
    assert found.outcome is (Outcome.FOUND if reason else Outcome.NOT_NEEDED)
    assert reason is None or reason in found.reason


def test_recompute_of_fused_attention_is_listed_with_its_cause(tmp_path: Path) -> None:
    rule = "core-attention-recompute-not-seen"
    command = f"{DENSE} --recompute-granularity selective --recompute-modules core_attn"
    fused = judged(tmp_path, rule, command, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16")
    assert (fused.outcome, fused.cause) == (Outcome.FOUND, "attention is fused and keeps no scores")
    assert judged(tmp_path, rule, command, POINTWISE).outcome is Outcome.NOT_NEEDED
