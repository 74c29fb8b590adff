"""Private paths, keys and words are cut; names that only look like them stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.tables.shareable import KeyShapes, SafeWords, cut_private, cut_sentence, holds_key, is_safe_text

KEYS = [
    "hf_Ab3dEf6hIj9kLm2nOp5q",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0abcdefghijkl",
    "glpat-ABCdefGHI123456",
    "sk-proj-abcdEFGH12345678",
    "nvapi-AbCdEfGhIjKlMnOp",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghij",
    "xoxb-123456789012-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "pypi-AgEIcHlwaS5vcmcCJDU",
    "-----BEGIN OPENSSH PRIVATE KEY",
    "Bearer abcdef123456",
    "alice:hunter2@db.example.org",
    "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
]

NAMES = [
    "void at::native::reduce_kernel<512, 1, at::native::func_wrapper_t<float, float(*)(float)>>",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "triton_poi_fused__to_copy_add_cat_mul_rsub_sigmoid_silu_split_0",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "void task-abcdefghijklmnop<mask-abcdefghijklmnop>",
]


@pytest.mark.parametrize("key", KEYS)
def test_keys_are_cut_out_of_any_text(key: str) -> None:
    assert holds_key(f"load with {key} done")
    assert cut_private(f"kernel<{key}>(int)") == "kernel<<key>>(int)"


@pytest.mark.parametrize("name", NAMES)
def test_names_of_kernels_stay_as_they_are(name: str) -> None:
    assert cut_private(name) == name


def test_paths_are_cut_out_and_the_rest_stays() -> None:
    assert cut_private("void f<lambda at /home/a/x.cu:12>(int)") == "void f<lambda at <path>>(int)"


PLAIN = [
    "megatron.bridge.training.train.train.training_step_4",
    "TransformerLayer.forward",
    "_layernorm_linear.forward.column_parallel_comm_input",
    "transformer_engine.AttnFuncWithCPAndQKVOA2A.forward",
    "HyperConnection::fused_h_res_h_post_bda",
    "MoEAuxLossAutoScaler",
    "moe_combine backward",
    "layer_0f-layer_3b",
    "iteration 12",
    "SMs Active [Throughput %]",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA A100-SXM4-80GB",
    "GA10B",
    "CUDA profiling data flush on cudaProfilerStop",
]

TELLING = [
    "hunter2",
    "alice",
    "project_phoenix",
    "correct horse battery staple",
    "step of alice",
    "10.0.0.12:29500",
    "node 192.168.1.7",
    "x9f2e7b1c4",
    "a1b2c3d4e5f6",
    "step 1234567890",
    "12 345 678 901 234",
    "größe",
    "",
    "forward\nbackward",
    "load /data/alice",
]


@pytest.mark.parametrize("text", PLAIN)
def test_the_trades_own_words_are_plain(text: str) -> None:
    assert is_safe_text(text)


@pytest.mark.parametrize("text", [*TELLING, *KEYS])
def test_names_projects_addresses_and_keys_are_not(text: str) -> None:
    assert not is_safe_text(text)


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("Number of CUDA events collected: \t19970.", "Number of CUDA events collected: \t19970."),
        ("Process pid_12_stdout.log, see /tmp/alice/out", "Process pid_12_stdout.log, see <path>"),
        ("Process hunter2 of alice failed at 10.0.0.1:80", "Process <word> of <word> failed at <address>"),
        ("key hf_Ab3dEf6hIj9kLm2nOp5q expired", "key <key> expired"),
    ],
)
def test_of_a_message_the_plain_words_stay(message: str, left: str) -> None:
    assert cut_sentence(message) == left
    assert cut_sentence(left) == left


@given(st.text(max_size=200))
def test_any_text_is_judged_without_failing_and_a_cut_one_is_cut(text: str) -> None:
    is_safe_text(text)
    assert not holds_key(cut_private(text))


def test_every_error_of_both_lists_is_reported_at_once(tmp_path: Path) -> None:
    shapes, words = tmp_path / "shapes.yaml", tmp_path / "words.yaml"
    shapes.write_text("shapes:\n  - {pattern: '(', reason: x}\n  - {pattern: a}\n", encoding="utf-8")
    with pytest.raises(RuleBaseError) as caught:
        load_table(shapes, KeyShapes)
    assert [line.partition("yaml:")[2] for line in str(caught.value).splitlines()] == [
        "2:15: not a regular expression: missing ), unterminated subpattern at position 0",
        "3:5: key reason is missing",
    ]
    words.write_text("words: [forward, Backward, x]\n", encoding="utf-8")
    with pytest.raises(RuleBaseError) as caught:
        load_table(words, SafeWords)
    assert [line.rpartition(", found ")[2] for line in str(caught.value).splitlines()] == ["Backward", "x"]
