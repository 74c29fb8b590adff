"""The judgements that scrubbing rests on, one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from three_walls.capture.scrub import secrets as secrets_module
from three_walls.capture.scrub.secrets import Secrets, looks_random, scan_for_leaks
from three_walls.capture.scrub.texts import TextFilter, reduce_command
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.build_timeline import wanted_ranges
from three_walls.tables.shareable import scrub_rules

SCRIPTS = scrub_rules().scripts


def scan_leaks(path: Path, secrets: Secrets, kept: Sequence[str]) -> tuple[int, int]:
    with path.open("rb") as stream:
        return scan_for_leaks(stream, secrets, kept)


def config_of(words: Sequence[str]) -> RunConfig:
    return merge_sources([read_command_line(words)])


@pytest.mark.parametrize(
    "text",
    [
        "aten::mm, seq = 3, op_id = 0, sizes = [[1, 2], []]",
        "autograd::engine::evaluate_function: TransposeBackward0, op_id = 0",
        "ncclAllReduce",
        "megatron.bridge.training.train.train.training_step_12",
        "layer_3f-layer_4b",
        "TorchDynamo Cache Lookup",
        "FSDP::pre_forward (encoder.block.14.layer.1), op_id = 0",
    ],
)
def test_ranges_of_libraries_stay(text: str) -> None:
    assert TextFilter(scrub_rules(), Secrets()).filter("range_texts", text) == text


def test_numbers_of_single_calls_go_because_nobody_reads_them() -> None:
    filtered = TextFilter(scrub_rules(), Secrets()).filter(
        "range_ids", "aten::mm, seq = 3, op_id = 12, sizes = [[1, 2], []], input_op_ids = [(7,0), (0,-1)]"
    )
    assert filtered == "aten::mm, seq = 3, op_id = 0, sizes = [[1, 2], []]"


@pytest.mark.parametrize(
    "text",
    [
        "load /data/alice/corpus.bin",
        "user=alice",
        "hf_Ab3dEf6hIj9kLm2nOp5q",
        "batch for bob@example.com",
        "aten::mm, seq = 3, note = secret",
        "10.0.0.12:29500",
    ],
)
def test_other_ranges_get_a_number(text: str) -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    assert texts.filter("range_texts", text) == "range-1"
    assert texts.filter("range_texts", f"{text}?") == "range-2"
    assert texts.filter("range_ids", text) == "range-1"  # the same text stays the same range, wherever it stands


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("aten::zwergelstern", "aten::word1"),
        ("FSDP::forward (zwergelstern.layers.3), op_id = 4", "FSDP::forward (word1.layers.3), op_id = 0"),
        ("nccl:Zwergelstern_all_reduce", "nccl:word1_all_reduce"),
        ("ZwergelsternBackward0", "word1Backward0"),
        (
            "autograd::engine::evaluate_function: ZwergelsternBackward",
            "autograd::engine::evaluate_function: word1Backward",
        ),
        ("triton_poi_fused_mul_zwergelstern_0", "triton_poi_fused_mul_word1_0"),
        (
            "## Call CompiledFxGraph fdsyy3hik3wkxfc3a6ccjg35idu7uuahg7bokcftobywqcge2mig ##",
            "## Call CompiledFxGraph word1 ##",
        ),
        ("aten::hunter2", "aten::word1"),
        ("aten::x9f2e7b1c4", "aten::word1"),
    ],
)
def test_of_a_librarys_range_the_words_of_the_field_stay(text: str, left: str) -> None:
    assert TextFilter(scrub_rules(), Secrets()).filter("range_ids", text) == left


def test_a_number_of_fifteen_digits_behind_an_operator_is_no_size() -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    assert texts.filter("range_ids", "aten::mm, seq = 12345678901234") == "aten::mm, seq = 12345678901234"
    assert texts.filter("range_ids", "aten::mm, seq = 123456789012345") == "range-1"


def test_a_range_that_names_the_user_gets_a_number() -> None:
    secrets = Secrets()
    secrets.add_variables(['USER="graph"'], are_kept=True)
    texts = TextFilter(scrub_rules(), secrets)
    assert texts.filter("range_texts", "graph.forward") == "range-1"
    assert texts.filter("range_texts", "graphed.forward") == "graphed.forward"


@pytest.mark.parametrize("needle", [text for text in wanted_ranges(None).needles if not text.endswith("ward")])
def test_what_analysis_looks_for_inside_of_a_range_stays_of_one_that_does_not(needle: str) -> None:
    text = f"alice's run/{needle}7 of hunter2"
    kept = TextFilter(scrub_rules(), Secrets()).filter("range_texts", text)
    assert kept.startswith("range-1 ")
    assert needle in kept
    assert ("alice" in kept, "hunter2" in kept) == (False, False)


@pytest.mark.parametrize("text", ["attn forward", "moe_dispatch backward", "mlp wgrad"])
def test_ranges_that_analysis_knows_by_their_whole_text_stay(text: str) -> None:
    assert TextFilter(scrub_rules(), Secrets()).filter("range_ids", text) == text


@pytest.mark.parametrize("sizes", ["[[4096, 2048], [2048, 128]]", "[]", "[[], [1, 2], [[3]], []]"])
def test_sizes_of_an_operator_stay_and_other_texts_in_their_place_do_not(sizes: str) -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    text = f"aten::mm, op_id = 12, sizes = {sizes}, input_op_ids = [(11,0), (-1,0)]"
    assert texts.filter("range_ids", text) == f"aten::mm, op_id = 0, sizes = {sizes}"
    assert texts.filter("range_texts", text) == f"aten::mm, op_id = 0, sizes = {sizes}"
    assert texts.filter("range_texts", text.replace("12", "hunter2")) == "range-1"


def test_paths_inside_of_kernel_names_are_cut_out_and_the_rest_stays() -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    assert texts.filter("kernel_ids", "void f<lambda at /home/a/x.cu:12>(int)") == "void f<lambda at <path>>(int)"
    plain = "void at::native::reduce_kernel<512, 1, at::native::func_wrapper_t<float, float(*)(float)>>"
    assert texts.filter("kernel_ids", plain) == plain


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("void zwergelstern_fused_rope_kernel<float>(int)", "void word1_fused_rope_kernel<float>(int)"),
        ("ZwergelsternGemmKernel", "word1GemmKernel"),
        ("void hunter2::gemm<8>()", "void word1::gemm<8>()"),
        ("gemm_k3yAbq9Zx81_kernel", "gemm_word1_kernel"),
        ("gemm for bob@example.com", "gemm for <address>"),
        ("gemm on node7.zwergel.example", "gemm on node7.word1.example"),
        ("gemm 192.168.7.13 fe80::1ff:fe23:4567:890a", "gemm <address> <address>"),
        ("lambda at src/alice/x.cu", "lambda at <path>"),
        ("lambda at \\\\server\\share\\x.cu", "lambda at <path>"),
        ("gemm_4111111111111111", "gemm_word1"),
        ("gemm_größe_kernel", "word1"),
        ("gemm\x1b[31m kernel ✓", "gemm?[31m kernel ?"),
        ("gemm_" + "zwergel" * 40, "gemm_word1"),
    ],
)
def test_of_a_kernels_name_the_words_of_the_field_stay(name: str, left: str) -> None:
    assert TextFilter(scrub_rules(), Secrets()).filter("kernel_ids", name) == left


def test_the_same_word_is_replaced_by_the_same_word() -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    names = [texts.filter("kernel_ids", name) for name in ("falkor_gemm", "zwergel_gemm", "falkor_add")]
    assert names == ["word1_gemm", "word2_gemm", "word1_add"]
    assert [texts.filter("kernel_ids", name) for name in names] == names


def test_names_of_calls_are_judged_too() -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    for call in ("cudaStreamSynchronize_v3020", "cuMemcpyHtoDAsync_v2_ptsz", "cudaOccupancyMaxActiveClusters_v11070"):
        assert texts.filter("call_ids", call) == call
    assert texts.filter("call_ids", "cudaZwergelstern_v3020") == "cudaword1_v3020"


def test_the_name_of_a_user_that_is_a_word_of_the_field_leaves_kernels_alone() -> None:
    secrets = Secrets()
    secrets.add_identity("adam")
    secrets.add_identity("node-7")
    texts = TextFilter(scrub_rules(), secrets)
    assert texts.filter("kernel_ids", "multi_tensor_adam") == "multi_tensor_adam"
    assert texts.filter("kernel_ids", "gemm on Node-7") == "kernel-1"
    assert texts.filter("range_ids", "run of adam") == "range-1"


@pytest.mark.parametrize(
    "word", ["0a1b2c3d4e5f60718293", "hf_Ab3dEf6hIj9kLm2nOp5q", "03f4d21b716415ea49faf8657693f2a5"]
)
def test_keys_look_random(word: str) -> None:
    assert looks_random(word)


@pytest.mark.parametrize("word", ["TransposeBackward0", "expandable_segments", "nvjet_sm90_tst_128x256_64x4", "13.0.2"])
def test_names_do_not(word: str) -> None:
    assert not looks_random(word)


def test_a_megatron_command_keeps_its_settings_and_nothing_else() -> None:
    command = (
        "torchrun --nproc-per-node 8 --rdzv-endpoint node7:29500 /home/alice/mlm/pretrain_gpt.py --num-layers 4 "
        "--hidden-size=64 --num-attention-heads 4 --save /scratch/alice --overlap-grad-reduce --moe-layer-freq [0,1] "
        "--wandb-api-key abc --lr 1e-4 -1"
    )
    words = command.split()
    reduced, dropped = reduce_command(words, SCRIPTS)
    assert reduced[:2] == ["python", "pretrain_gpt.py"]
    assert {"--num-layers", "4", "--hidden-size=64", "--overlap-grad-reduce", "[0,1]"} <= set(reduced)
    assert {"node7:29500", "/scratch/alice", "abc", "--wandb-api-key"} <= dropped
    assert config_of(reduced) == config_of(words)


def test_a_bridge_command_keeps_known_overrides_and_the_paths_of_others() -> None:
    command = (
        "python /home/alice/scripts/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config -tp 2 "
        "model.moe_token_dispatcher_type=alltoall comm_overlap.user_dir=/home/alice train.train_iters=20 "
        "logger.wandb_project=alice-project env_vars.NCCL_DEBUG=INFO env_vars.HF_TOKEN=abc"
    )
    words = command.split()
    reduced, _ = reduce_command(words, SCRIPTS)
    assert not [word for word in reduced if "alice" in word or "abc" in word]
    assert config_of(reduced) == config_of(words)


def test_a_command_inside_of_a_shell_string_is_reduced_too() -> None:
    words = ["bash", "-c", "cd /home/alice && TOKEN=abcdef12 python my_run.py --num-layers 4 --hidden-size 8 --bf16"]
    reduced, dropped = reduce_command(words, SCRIPTS)
    assert reduced == ["python", "train.py", "--num-layers", "4", "--hidden-size", "8", "--bf16"]
    assert "TOKEN=abcdef12" in dropped


def test_a_loose_value_inside_of_a_kept_name_is_chance_and_elsewhere_a_leak(tmp_path: Path) -> None:
    secrets = Secrets(loose={"attention-run"})
    (tmp_path / "file").write_bytes(b"...attention-run...")
    assert scan_leaks(tmp_path / "file", secrets, ["my attention-run kernel"])[1] == 0
    assert scan_leaks(tmp_path / "file", secrets, ["something else"])[1] == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_strict_value_is_a_leak_wherever_it_is(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "file").write_bytes(b"\0\0" + "s3cr3t-value".encode(encoding))
    assert scan_leaks(tmp_path / "file", Secrets(strict={"s3cr3t-value"}), ["s3cr3t-value is kept"]) == (1, 1)


@given(st.binary(max_size=60), st.sets(st.text("ab\0/", min_size=6, max_size=9), max_size=6), st.integers(1, 7))
def test_the_scan_finds_what_searching_one_by_one_finds(data: bytes, values: set[str], piece_bytes: int) -> None:
    for value in sorted(values)[::2]:
        data += value.encode("utf-16-le") + b"/" + value.encode()
    with tempfile.TemporaryDirectory() as folder, patch.object(secrets_module, "_PIECE_BYTES", piece_bytes):
        path = Path(folder) / "file"
        path.write_bytes(data)
        _, leaked = scan_leaks(path, Secrets(strict=values), [])
    codes = ("utf-8", "utf-16-le", "utf-16-be")
    assert leaked == sum(any(value.encode(code) in data for code in codes) for value in values)


def test_names_of_hardware_counters_stay_and_other_words_in_them_do_not() -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    name = "NVLink RX Responses User Data [Throughput %]"
    assert texts.filter("metric_names", name) == name
    assert texts.filter("metric_names", "IB: Bytes sent") == "IB: Bytes sent"
    assert (texts.filter("field_names", "bytes/ms"), texts.filter("field_names", "/home/x")) == ("bytes/ms", "field-1")
    assert texts.filter("metric_names", "Tensor Active of hunter [Avg]") == "Tensor Active of word1 [Avg]"


def test_a_message_of_the_profiler_that_names_a_secret_is_replaced() -> None:
    texts = TextFilter(scrub_rules(), Secrets())
    assert texts.filter("sentences", "Process train --token abc failed") == "message-1"
    assert texts.filter("sentences", "HF_TOKEN=abc was not exported") == "message-2"
    assert texts.filter("sentences", "Profiling has started --wait=all") == "Profiling has started --wait=all"
