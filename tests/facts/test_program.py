"""Whether a capture is of a Megatron training run: only then is a wall named and an edit planned."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.paths import SAMPLES
from tests.trace_builder import ADAM, GEMM, MEGATRON_RANGE, TraceBuilder
from three_walls import analyze
from three_walls.advice.finding import Outcome
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

MS = 1_000_000
SOFTMAX = "void cunn_SoftMaxForward<float>(float*)"
MEGATRON_SOFTMAX = "void scaled_masked_softmax_warp_forward<__half, __half, float, 12>(X)"
TE_SOFTMAX = "void transformer_engine::scaled_masked_softmax_warp_forward<__half, __half, float, 12>(X)"
TE_NORM = "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits>(X)"
DEEPEP = "void deep_ep::intranode::dispatch<4>(int4*)"
PAGED_ATTENTION = "void vllm::paged_attention_v1_kernel<float>(float*)"


def train(kernel: str = SOFTMAX, text: str = "") -> TraceBuilder:
    """Five steps of 20 late launches each, with ``kernel`` after each GEMM, inside ranges named ``text``."""
    trace, now = TraceBuilder(), 1
    for _ in range(5):
        begin = now
        now = _pass(trace, kernel, now, 20)
        trace.copy(1, now, now + 3 * MS, launched=now - 1000, memory=(0, 2), size=10**8)
        now += 3 * MS
        for order in range(4):
            trace.kernel(ADAM, now + order * 100_000, now + order * 100_000 + 90_000, launched=now - 100)
        now += MS
        if text:
            trace.nvtx(text, begin, now)
    return trace


def infer(kernel: str = PAGED_ATTENTION, text: str = "execute_model") -> TraceBuilder:
    """Eight passes without an optimizer, each in a range named ``text``."""
    trace, now = TraceBuilder(), 1
    for _ in range(8):
        begin = now
        now = _pass(trace, kernel, now, 30)
        trace.copy(2, now, now + MS, launched=now - 1000, memory=(2, 0), size=10**6).nvtx(text, begin, now + MS)
        now += MS
    return trace


def _pass(trace: TraceBuilder, kernel: str, now: int, count: int) -> int:
    for _ in range(count):
        trace.kernel(GEMM, now + 2 * MS, now + 3 * MS, launched=now + 2 * MS - 10_000)
        trace.kernel(kernel, now + 3 * MS, now + 3 * MS + 300_000, launched=now + 2 * MS - 5_000)
        now += 3 * MS + 300_000
    return now


def judge(trace: TraceBuilder, tmp_path: Path, **inputs: Path) -> Report:
    return analyze(trace.write(tmp_path / "trace.sqlite"), **inputs)


FOREIGN: dict[str, Callable[[], TraceBuilder]] = {
    "an inference server": lambda: infer().launched_as(
        "python -m vllm.entrypoints.openai.api_server --model m --tensor-parallel-size 4 --enable-expert-parallel"
    ),
    "an inference server with DeepEP": lambda: infer(DEEPEP),
    "a program in plain PyTorch": train,
    "a script that names its steps as Megatron-Bridge does": lambda: train(text="training_step_7").launched_as(
        "python moe.py 2048 4 8"
    ),
    "a trainer with Transformer Engine": lambda: train(TE_NORM).launched_as("accelerate launch train.py --fp8"),
    "a trainer with Transformer Engine's copy of a Megatron kernel": lambda: train(TE_SOFTMAX, "training_step_7"),
    "a trainer with DeepEP": lambda: train(DEEPEP, "training_step_7").launched_as("torchrun train.py"),
    "a trainer with fairscale": lambda: train(text="_CopyToModelParallelRegion, seq = 2"),
    "a trainer with modules of similar names": lambda: train(TE_NORM, "my.megatron.core_step training_step_7"),
    "a trainer of another library": lambda: train(text="Trainer.training_step").launched_as(
        "python run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 8 --bf16"
    ),
    "a trainer with flags that Megatron has too": lambda: train().launched_as(
        "torchrun --nproc-per-node 4 train.py --micro-batch-size 4 --bf16 --seq-length 4096 --num-experts 8"
    ),
    "a trainer with overrides that Megatron-Bridge has too": lambda: train().launched_as(
        "python train.py model.hidden_size=512 optimizer.lr=1e-3 dataset.path=x train.global_batch_size=8"
    ),
    "experts of another library": lambda: train(text="_AllToAll").launched_as("deepspeed train.py --deepspeed c.json"),
    "Megatron's text generation": lambda: infer(text="generate").launched_as(
        "python tools/run_text_generation_server.py --num-layers 4 --hidden-size 1024 --tensor-model-parallel-size 1"
    ),
    "Megatron's evaluation": lambda: infer(text="_CopyToModelParallelRegion").launched_as(
        "python pretrain_gpt.py --skip-train --num-layers 4 --hidden-size 1024 --seq-length 4096 --num-experts 8"
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_no_wall_and_no_edit_without_a_megatron_training_run(name: str, tmp_path: Path) -> None:
    report = judge(FOREIGN[name](), tmp_path)
    assert report.verdict.wall is None
    assert report.plan == ()
    assert "launch-bound-program" in [finding.rule for finding in report.findings if finding.outcome is Outcome.FOUND]


MEGATRON: dict[str, Callable[[], TraceBuilder]] = {
    "a kernel": lambda: train(MEGATRON_SOFTMAX),
    "a step of Megatron-Bridge": lambda: train(text="megatron.bridge.training.train.train.training_step_7"),
    "a function of Megatron Core": lambda: train(
        TE_NORM, "megatron.core.transformer.transformer_layer._forward_attention.self_attention"
    ),
    "a captured autograd function": lambda: train(TE_NORM, MEGATRON_RANGE),
    "a range of the router": lambda: train(text="RouterGatingLinearFunction, seq = 7, op_id = 12"),
    "a range of tensor parallelism": lambda: train(text="_ReduceScatterToSequenceParallelRegion"),
    "a range of a layer": lambda: train(text="LinearWithGradAccumulationAndAsyncCommunication"),
    "a flag": lambda: train().launched_as(
        "torchrun my_train.py --num-layers 4 --seq-length 4096 --expert-model-parallel-size 4"
    ),
    "a script": lambda: train().launched_as("torchrun pretrain_gpt.py --num-layers 4 --seq-length 4096 --bf16"),
    "an override": lambda: train().launched_as("torchrun my_train.py model.expert_model_parallel_size=4"),
    "a recipe": lambda: train().launched_as("torchrun my_train.py --recipe qwen3_30b_a3b_pretrain_config"),
}


@pytest.mark.parametrize("name", MEGATRON)
def test_one_sign_of_megatron_is_enough_for_a_wall(name: str, tmp_path: Path) -> None:
    assert judge(MEGATRON[name](), tmp_path).verdict.wall is not None


@pytest.mark.parametrize(
    ("kernel", "text", "doubt"),
    [
        (TE_NORM, "", "kernels of Transformer Engine occur in other programs too"),
        (DEEPEP, "", "kernels of an expert-parallel dispatcher occur"),
        (
            TE_SOFTMAX,
            "training_step_7",
            "NVTX ranges training_step_N and kernels of Transformer Engine occur in other programs too",
        ),
        (SOFTMAX, "", "show a Megatron run (if"),
    ],
)
def test_without_a_sign_the_verdict_states_what_is_none_and_what_to_give(
    kernel: str, text: str, doubt: str, tmp_path: Path
) -> None:
    reason = judge(train(kernel, text), tmp_path).verdict.reason
    assert doubt in reason
    assert "(if this is a Megatron run, give --config, --log or --set)" in reason


def test_a_capture_with_cuda_alone_gets_its_wall_once_the_run_is_stated(tmp_path: Path) -> None:
    trace = train(TE_NORM).launched_as("python train.py").write(tmp_path / "trace.sqlite")
    assert analyze(trace).verdict.wall is None
    assert analyze(trace, settings=["num_moe_experts=8"]).verdict.wall is not None


def test_megatrons_autograd_functions_show_it_where_the_capture_lost_its_command_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    shutil.copyfile(SAMPLES / "wide-nvlink-alltoall.sqlite", path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE META_DATA_CAPTURE")
    report = analyze(path)
    assert report.verdict.wall == "compute_host"
    assert report.facts.get("megatron_sign").value == "NVTX ranges of Megatron's parallel regions"


def test_steps_are_read_from_ranges_that_are_no_sign(tmp_path: Path) -> None:
    report = judge(train(text="training_step_7"), tmp_path)
    assert report.facts.get("training_sign").value == "nvtx training_step, numbered in order"
    assert report.facts.get("megatron_sign").is_missing


def test_a_configuration_is_a_sign_too(tmp_path: Path) -> None:
    config = tmp_path / "run_config.yaml"
    config.write_text("model:\n  num_layers: 4\n  hidden_size: 1024\ntrain:\n  micro_batch_size: 1\n")
    assert judge(train(), tmp_path, config=config).verdict.wall is not None


def test_a_log_is_a_sign_too(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f" [2026-08-01 10:00:{10 + n}.000000] iteration {n:8d}/      20 | consumed samples: {8 * n:12d} | elapsed "
            f"time per iteration (ms): 80.{n} | learning rate: 1.0E-04 | global batch size:     8 | lm loss: 1.0E+01 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            for n in range(1, 9)
        )
    )
    assert judge(train(), tmp_path, logs=log).verdict.wall is not None
