"""What an exchange of tokens moves, counted by hand, and the command that times it, on two processes without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import REPOSITORY

KIT = REPOSITORY / "benchmarks" / "gpu"
sys.path.insert(0, str(KIT))

import dispatch_bandwidth as bandwidth  # noqa: E402 - scripts beside the package
import exchange_rows as rows  # noqa: E402

PYTHON = os.environ.get("THREE_WALLS_TORCH", sys.executable)
"""An interpreter with PyTorch, where the one of the tests has none."""

# Two GPUs with two experts each: 0 and 1 on the first, 2 and 3 on the second.
SHAPE = rows.Shape(tokens=3, hidden=256, topk=2, experts_per_gpu=2)
CHOICES = [[0, 1], [2, 3], [1, 2]]


def test_an_all_to_all_sends_a_copy_for_each_expert_and_the_others_one_for_each_gpu() -> None:
    assert rows.count_copies(CHOICES, SHAPE, 2) == [3, 3]
    assert rows.count_tokens(CHOICES, SHAPE, 2) == [2, 2]


def test_only_rows_for_other_gpus_leave_and_all_rows_are_received() -> None:
    counts = [[2, 5], [3, 4]]
    assert rows.mean_leaving(counts) == (5 + 3) / 2
    assert rows.mean_received(counts) == (2 + 5 + 3 + 4) / 2


def test_a_row_in_fp8_travels_with_a_scale_for_128_values() -> None:
    assert rows.row_bytes(256, "bf16") == 512
    assert rows.row_bytes(256, "fp8") == 256 + 2 * 4


def test_tokens_choose_different_experts_and_the_same_ones_in_every_process() -> None:
    shape = rows.Shape(200, 64, 4, 8)
    choices = rows.choose_experts(shape, 2, 1)
    assert len(choices) == 200
    assert all(len(set(experts)) == 4 for experts in choices)
    assert {expert for experts in choices for expert in experts} == set(range(16))
    script = "import exchange_rows as r; print(list(map(list, r.choose_experts(r.Shape(200, 64, 4, 8), 2, 1))))"
    again = subprocess.run([sys.executable, "-c", script], cwd=KIT, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout) == [list(experts) for experts in choices]
    assert rows.choose_experts(shape, 2, 0) != choices


@pytest.mark.parametrize("text", ["4096,7168,8", "4096,7168,8,0", "a,b,c,d"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        rows.parse_shape(text)


def test_a_bandwidth_is_the_bytes_of_a_gpu_by_the_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "choose_experts", lambda *_: CHOICES)
    times_us = [1.0, 2.0, 3.0]
    copies, unique = (
        bandwidth.rate(name, "dispatch", SHAPE, "bf16", None, 2, times_us) for name in ("alltoall", "deepep")
    )
    # Of both GPUs' six rows three go to the other GPU, as copies; as tokens it is two of four.
    assert (copies.left_bytes, unique.left_bytes) == (3 * 512, 2 * 512)
    assert copies.algorithm_bytes == unique.algorithm_bytes == 4 * 512
    assert (copies.median_us, copies.left_gb_per_s) == (2.0, round(3 * 512 / 2e3, 2))


def test_a_reason_that_holds_for_several_measurements_is_said_once() -> None:
    missing = [bandwidth.Missing("deepep", "no package"), bandwidth.Missing("deepep", "no package")]
    assert bandwidth.summarize([], missing)["missing"] == [
        {"dispatcher": "deepep", "reason": "no package", "measurements": 2}
    ]


FLEX = """
import torch.distributed as dist
def set_deepep_num_sms(num_sms):
    if num_sms % 2:
        raise ValueError("an odd number of SMs")
def fused_dispatch(
    x, token_indices, token_probs, num_experts, group, async_finish=False, allocate_on_comm_stream=False
):
    per_gpu = num_experts // group.size()
    gpus = [len({e // per_gpu for e in experts}) for experts in token_indices.tolist()]
    return x, token_indices, token_probs, None, x.new_tensor(gpus)[:, None]
def fused_combine(x, group, handle, async_finish=False, allocate_on_comm_stream=False):
    return x * handle, None
hybrid_ep_dispatch = None
"""
"""Megatron Core's module, as if DeepEP were there and HybridEP not."""


def run(folder: Path, *options: str) -> dict[str, Any]:
    command = [
        PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(KIT / "dispatch_bandwidth.py"),
        "--device", "cpu", "--shape", "64,128,2,2", "--repeats", "3", "--warmup", "1",
        "--out", str(folder / "out.json"),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    subprocess.run([*command, *options], check=True, env=environment, timeout=120, capture_output=True)
    return json.loads((folder / "out.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(
    "THREE_WALLS_TORCH" not in os.environ and importlib.util.find_spec("torch") is None,
    reason="no PyTorch here; THREE_WALLS_TORCH names an interpreter that has it",
)
def test_two_processes_exchange_tokens_and_say_what_they_lack(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert {(row["dispatcher"], row["operation"], row["dtype"]) for row in found["results"]} == {
        (name, operation, dtype)
        for name in ("alltoall", "alltoall-rows")
        for operation, dtype in (("dispatch", "bf16"), ("combine", "bf16"), ("dispatch", "fp8"))
    }
    assert all(row["median_us"] > 0 and row["left_bytes"] > 0 for row in found["results"])
    assert {row["dispatcher"] for row in found["missing"]} == {"deepep", "hybridep"}
    assert found["backend"] == "gloo"

    module = tmp_path / "megatron" / "core" / "transformer" / "moe" / "fused_a2a.py"
    module.parent.mkdir(parents=True)
    module.write_text(FLEX)
    found = run(
        tmp_path, "--dispatcher", "deepep", "--dispatcher", "hybridep", "--dtype", "bf16", "--sms", "8", "--sms", "9"
    )
    assert [(row["dispatcher"], row["operation"], row["sms"]) for row in found["results"]] == [
        ("deepep", "dispatch", 8),
        ("deepep", "combine", 8),
    ]
    assert [(row["dispatcher"], row["reason"].split(":")[0]) for row in found["missing"]] == [
        ("deepep", "ValueError"),
        ("hybridep", "ImportError"),
    ]
    late = run(tmp_path, "--dispatcher", "alltoall", "--seconds", "0")
    assert late["results"] == []
    assert late["missing"] == [{"dispatcher": "alltoall", "reason": "no time was left", "measurements": 2}]
