"""Megatron-Bridge's saved configurations: every release, before and after its checks, and files that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from three_walls.lib.errors import InputError
from three_walls.lib.yaml import read_yaml
from three_walls.megatron.settings.saved_config import read_config_file, read_dump
from three_walls.megatron.settings.setting_sources import SourceSettings

# What every release has; a test adds what is its own.
BASE = """
_target_: megatron.bridge.training.config.ConfigContainer
model: {_target_: megatron.bridge.models.gpt_provider.GPTModelProvider, num_layers: 48, expert_model_parallel_size: 8}
train: {micro_batch_size: 1, global_batch_size: 64}
optimizer: {use_distributed_optimizer: true}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, grad_reduce_in_fp32: false}
"""
SAVED = "scheduler: {wd_incr_steps: 51200}\n"


def read(text: str) -> SourceSettings:
    return read_dump(text, "config file", "run_config.yaml")


def values(text: str) -> dict[str, object]:
    return {name: found.value for name, found in read(text).values.items()}


@pytest.mark.parametrize(
    ("more", "release", "evidence"),
    [
        ("dist: {lazy_init: false}\n", "0.3", "dist.lazy_init last existed in 0.3"),
        ("validation: {eval_iters: 0}\ndist: {lazy_mpu_init: null}\n", "0.4", "validation, dist.lazy_mpu_init"),
        ("validation: {eval_micro_batch_size: 1}\n", "0.5", "validation.eval_micro_batch_size came with 0.5"),
        ("env_vars: {NCCL_DEBUG: INFO}\n", "0.6", "env_vars came with 0.6"),
    ],
)
def test_the_release_is_inferred_from_the_newest_key(more: str, release: str, evidence: str) -> None:
    found = read(BASE + more)
    assert found.bridge_version == release
    assert evidence in found.bridge_version_evidence


def test_main_is_inferred_from_its_own_key() -> None:
    found = read(BASE.replace("ddp: {", "ddp: {megatron_fsdp_version: 1, "))
    assert found.bridge_version == "main"


def test_keys_of_releases_that_never_coexisted_give_no_release() -> None:
    found = read(BASE + "env_vars: {}\ndist: {lazy_init: false}\n")
    assert found.bridge_version is None
    assert "dist.lazy_init last existed in 0.3, env_vars came with 0.6" in found.warnings[0]


def test_keys_of_no_known_release_are_named_but_for_those_of_a_models_own_class() -> None:
    text = BASE.replace("num_layers: 48", "num_layers: 48, mamba_chunk: 1, env: {}").replace(
        "train: {", "train: {typo: 1, "
    )
    (warning,) = [found for found in read(text + "dataset: {own: 1}\n").warnings if "no known release" in found]
    assert "has model.mamba_chunk, model.env, train.typo: not checked" in warning
    for own in ("HybridM", "Gemma3M"):
        (warning,) = [found for found in read(text.replace("GPTM", own)).warnings if "no known release" in found]
        assert "has train.typo: not checked" in warning
    assert not [found for found in read(BASE).warnings if "no known release" in found]


def test_a_part_of_a_configuration_gives_no_release() -> None:
    assert read("env_vars: {}\nmodel: {num_layers: 2}\n").bridge_version is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{_target_: megatron.core.transformer.enums.AttnBackend, _args_: [1], _call_: true}", "flash"),
        ("{_target_: megatron.core.transformer.enums.AttnBackend, _args_: [9], _name_: local}", "local"),
        ("5", "auto"),
        ("fused", "fused"),
        ("AttnBackend.unfused", "unfused"),
        ("null", None),
    ],
)
def test_an_enum_is_read_in_every_form(text: str, expected: str | None) -> None:
    assert values(f"model: {{attention_backend: {text}}}")["attention_backend"] == expected


def test_lists_tuples_dtypes_and_names_are_read_without_constructing_them() -> None:
    text = """
model:
  cuda_graph_modules:
  - {_target_: megatron.core.transformer.enums.CudaGraphModule, _name_: moe_router, _args_: [4]}
  - {_target_: megatron.core.transformer.enums.CudaGraphModule, _args_: [5]}
  recompute_modules: !!python/tuple [moe_act, layernorm]
  num_layers: !!python/object/apply:os.system ["exit 1"]
  hidden_size: 2048
optimizer:
  exp_avg_dtype: {_target_: torch.bfloat16, _call_: false}
  main_grads_dtype: !!python/name:torch.float32 ''
"""
    found = read(text)
    assert found.values["cuda_graph_modules"].value == ("moe_router", "moe_preprocess")
    assert found.values["recompute_modules"].value == ("moe_act", "layernorm")
    assert found.values["exp_avg_dtype"].value == "bf16"
    assert found.values["main_grads_dtype"].value == "fp32"
    assert found.values["hidden_size"].value == 2048
    assert found.values["num_layers"].is_withheld  # the words of the call are no number, and nothing was called


def test_an_object_in_place_of_a_value_is_left_out_with_a_warning() -> None:
    found = read("model: {num_layers: {_target_: a.B}, hidden_size: 8}")
    assert "num_layers" not in found.values
    assert found.warnings == ("run_config.yaml: model.num_layers: expected a value, found an object; left out",)


def test_the_transformer_below_the_model_is_read() -> None:
    assert values("model: {transformer: {num_moe_experts: 128}, vocab_size: 9}")["num_moe_experts"] == 128


COMM = "comm_overlap: {_target_: a.CommOverlapConfig, tp_comm_overlap: true, overlap_grad_reduce: null}\n"


def test_after_the_checks_the_value_in_force_counts() -> None:
    # tensor parallelism of 1 turned the overlap off in the model; comm_overlap still is true
    found = values(BASE.replace("model: {", "model: {tp_comm_overlap: false, ") + COMM + SAVED)
    assert (found["tp_comm_overlap"], found["overlap_grad_reduce"]) == (False, True)
    assert found["comm_overlap"] == "CommOverlapConfig"


def test_before_the_checks_a_null_of_comm_overlap_is_unknown() -> None:
    found = values(BASE.replace("model: {", "model: {tp_comm_overlap: false, ") + COMM)
    assert found["tp_comm_overlap"] is True
    assert "overlap_grad_reduce" not in found


def test_without_comm_overlap_the_sections_count() -> None:
    found = values(BASE + "comm_overlap: null\n")
    assert (found["comm_overlap"], found["overlap_grad_reduce"]) == (None, True)


def test_a_named_precision_sets_what_its_recipe_sets_until_it_is_resolved() -> None:
    found = values(BASE + "mixed_precision: bf16_with_mxfp8_mixed\n")
    assert (found["mixed_precision"], found["fp8_recipe"], found["bf16"]) == ("bf16_with_mxfp8_mixed", "mxfp8", True)
    assert "grad_reduce_in_fp32" not in found  # the recipe will decide, not ddp


def test_a_precision_object_is_read_field_by_field() -> None:
    text = "mixed_precision: {_target_: a.MixedPrecisionConfig, bf16: true, fp8: null, grad_reduce_in_fp32: true}\n"
    found = values(BASE + text)
    assert (found["mixed_precision"], found["fp8"], found["grad_reduce_in_fp32"]) == (
        "MixedPrecisionConfig",
        None,
        True,
    )
    assert values(BASE + text + SAVED)["grad_reduce_in_fp32"] is False  # ddp's is in force


def test_one_of_two_places_turns_the_rng_tracker_on() -> None:
    assert values("model: {use_te_rng_tracker: false}\nrng: {te_rng_tracker: true}")["te_rng_tracker"] is True
    assert values("model: {use_te_rng_tracker: false}\nrng: {te_rng_tracker: false}")["te_rng_tracker"] is False


def test_the_environment_is_read_as_far_as_it_may_be_shown() -> None:
    found = read(BASE + "env_vars: {CUDA_DEVICE_MAX_CONNECTIONS: 32, WANDB_API_KEY: s3cr3t}\n")
    assert {name: value.value for name, value in found.environment.items()} == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    assert "s3cr3t" not in repr(found)


def test_the_data_parallel_size_that_bridge_worked_out_is_kept() -> None:
    assert read(BASE + "comm_overlap: {data_parallel_size: 16}\n").sizes["data_parallel_size"].value == 16


@pytest.mark.parametrize(
    ("model", "tokenizer", "expected"),
    [
        ("vocab_size: null", "tokenizer_type: NullTokenizer, vocab_size: 32001", {"vocab_size": 32_001}),
        ("vocab_size: null", "tokenizer_type: HuggingFaceTokenizer, vocab_size: null", {"vocab_size": None}),
        # the size stands in the tokenizer's files, and nothing fills this key from them
        ("vocab_size: null", "tokenizer_type: HuggingFaceTokenizer, vocab_size: 9", {"vocab_size": None}),
        # the model's own size is not padded
        ("vocab_size: 151936", "vocab_size: 9", {"vocab_size": 151_936, "padded_vocab_size": 151_936}),
        # a checkpoint's copy: it came from the tokenizer
        ("vocab_size: 32001, should_pad_vocab: true", "vocab_size: 32001", {"vocab_size": 32_001}),
        (
            "vocab_size: 151936",
            "tokenizer_type: NullTokenizer, use_tokenizer_vocab_size: true, vocab_size: 32001",
            {"vocab_size": 32_001},
        ),
    ],
)
def test_the_vocabulary_is_the_tokenizers_where_the_model_has_none(
    model: str, tokenizer: str, expected: dict[str, int]
) -> None:
    flag = "" if "should_pad_vocab" in model else ", should_pad_vocab: false"
    found = values(f"model: {{num_layers: 2, {model}{flag}}}\ntokenizer: {{{tokenizer}}}")
    assert {key: value for key, value in found.items() if "vocab" in key} == expected


def _bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    return "\n".join([*lines, "model: {num_layers: *a29, recompute_modules: *a29, hidden_size: 8}"])


def test_aliases_that_would_unfold_to_everything_are_refused() -> None:
    with pytest.raises(InputError, match="found more than 500,000 entries"):
        read(_bomb())


def test_aliases_of_shared_parts_are_read() -> None:
    found = read("shared: &s [full, &n 8]\nmodel: {recompute_modules: *s, hidden_size: *n}")
    assert found.values["hidden_size"].value == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found nothing"),
        (b"model: {num_layers: [1,", "found invalid YAML on line 2"),
        (b"- 1\n- 2\n", "found a list"),
        (b"just words", "found a single value"),
        (b"learning: {rate: 1}\n", "found none of its settings"),
        (b"model: &m {inner: *m}\n", "found an alias without an anchor before it on line 1"),
        (b"[" * 5000, "found more than 40 levels on line 1"),
        (b"\xff\xfe\x00", "found a file that is not UTF-8 text"),
        (b"a: 1\n---\nb: 2\n", "found more than one document"),
        (b"a: 1\x00", "found invalid YAML"),
    ],
)
def test_what_is_no_configuration_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run_config.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match="expected Megatron-Bridge's configuration as YAML") as error:
        read_config_file(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_one_is_not_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, found in ((tmp_path, "a directory"), (tmp_path / "none", "no such file"), (fifo, "a pipe or a device")):
        with pytest.raises(InputError, match=f"found {found}"):
            read_config_file(path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run_config.yaml"
    with path.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    with pytest.raises(InputError, match="found more than 16 MiB"):
        read_config_file(path)


@settings(deadline=None)
@given(st.text(st.sampled_from("model:{}[]&*!|>-,#\"' \n\t_target_0157.exy"), max_size=80))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    try:
        read_dump(text, "config file", "x")
    except InputError as error:
        assert "\n" not in str(error)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.integers(0, 10**9), max_size=4))
def test_plain_numbers_are_read_as_they_are_written(entries: dict[str, int]) -> None:
    text = "\n".join(f"'{name}': {value}" for name, value in entries.items()) or "{}"
    assert read_yaml(text) == entries


def test_the_warnings_of_a_file_name_it_without_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "run_config.yaml"
    path.write_text("model: {moe_permute_fusion: banana}\n")
    (note,) = read_config_file(path).warnings
    assert note.startswith("run_config.yaml: ")
    assert str(tmp_path) not in note
