"""A value that is not of its setting's form is known by name alone, in every source."""

from __future__ import annotations

import pytest

from tests.try_each import try_each
from three_walls.lib.errors import UsageError
from three_walls.megatron.settings.log_settings import read_argument_block
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line, read_user_settings
from three_walls.megatron.settings.run_config import NOT_SHOWN, ConfigValue
from three_walls.megatron.settings.saved_config import read_dump
from three_walls.megatron.settings.setting_sources import shown_words
from three_walls.tables.config_keys import ConfigKey, config_keys
from three_walls.trace.launch_record import read_environment

LINE = "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 8 --bf16"
KEYS = list(config_keys().keys.values())
SECRETS = ["hunter2", "hf_AbCdEfGhIjKlMnOpQrStUv", "/home/alice/model", "alice", "eyJhbGciOiJIUzI1NiJ9", "removed"]


@try_each(KEYS, lambda key: key.name)
def test_no_setting_takes_a_secret_for_a_value(key: ConfigKey) -> None:
    assert [secret for secret in SECRETS if shown_words(key, [secret]) is not None] == []


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("moe_layer_freq", "([0]*3+[1]*45)"),
        ("moe_layer_freq", "([1]*3+[0]*2)*2"),
        ("hybrid_override_pattern", "M-M-M*-M-EM|M*M*/MM"),
        ("pipeline_model_parallel_layout", "Et*3|(tt|)*29,m|L"),
        ("tokenizer_type", "HuggingFaceTokenizer"),
        ("cp_comm_type", "a2a+p2p"),
        ("mixed_precision", "bf16_with_fp8_current_scaling_mixed"),
        ("mixed_precision", "bf16-mixed"),
        ("mixed_precision", "nemotron_3_super_bf16_with_nvfp4_mixed"),
        ("high_priority_stream_groups", "ep_dp"),
        ("recompute_modules", "core_attn"),
        ("moe_router_dtype", "fp32"),
        ("timing_log_level", "-1"),  # a number that is not among the values is no secret
    ],
)
def test_what_launch_scripts_write_passes(name: str, word: str) -> None:
    known = shown_words(config_keys().keys[name], [word])
    assert known is not None
    (value,) = known
    assert str(value[0] if isinstance(value, tuple) else value) == word


def test_a_withheld_flag_is_neither_its_default_nor_unset() -> None:
    config = merge_sources([read_command_line([*LINE.split(), "--moe-token-dispatcher-type", "hunter2"])])
    assert not config.knows("moe_token_dispatcher_type")
    assert config.withheld_values["moe_token_dispatcher_type"] == ConfigValue.withheld("command line")
    assert "hunter2" not in repr(config)
    # an absent flag still has its default
    assert config.get("moe_flex_dispatcher_backend") == "deepep"


def test_nothing_is_derived_from_or_in_place_of_a_withheld_value() -> None:
    words = [*LINE.split(), "--ffn-hidden-size", "hunter2", "--pipeline-model-parallel-layout", "hunter2"]
    config = merge_sources([read_command_line(words)])
    assert not config.knows("ffn_hidden_size")  # not 4 x the hidden size
    assert not config.knows("virtual_pipeline_model_parallel_size")  # what a layout decides


@pytest.mark.parametrize(
    "word",
    [
        "model.moe_token_dispatcher_type=hunter2",
        "mixed_precision=hunter2",
        "comm_overlap=hunter2",
        "model.recompute_modules=[core_attn,hunter2]",
        "env_vars.NCCL_DEBUG=hunter2",
        "model.num_layers={a:hunter2}",
    ],
)
def test_overrides_of_bridge_are_withheld_too(word: str) -> None:
    settings = read_command_line(["run_recipe.py", "--recipe", "qwen3", "model.num_layers=4", word])
    assert "hunter2" not in repr(settings)


def test_so_are_options_of_its_scripts_logs_and_saved_configurations() -> None:
    command = read_command_line(["run_recipe.py", "--moe_flex_dispatcher_backend", "hunter2", "-tp", "hunter2"])
    log = read_argument_block([("tokenizer_type", "hunter2"), ("optimizer", "'hunter2'"), ("num_layers", "4")])
    saved = read_dump(
        "model: {num_layers: 4, attention_backend: hunter2}\nmixed_precision: hunter2\n"
        "comm_overlap: {_target_: a.hunter2}\nenv_vars: {NCCL_DEBUG: hunter2, NCCL_ALGO: Ring}",
        "config file",
        "x",
    )
    assert "hunter2" not in repr((command, log, saved))
    assert saved.environment["NCCL_DEBUG"] == ConfigValue.withheld("config file")
    assert saved.environment["NCCL_ALGO"] == ConfigValue("Ring", "config file")


def test_a_withheld_value_counts_before_other_sources_and_disagrees_with_none() -> None:
    log, launch = read_argument_block([("optimizer", "hunter2")]), read_command_line([*LINE.split()])
    merged = merge_sources([log, launch])
    assert not merged.knows("optimizer")
    assert merged.conflicts == ()


def test_a_variable_that_is_withheld_is_set_to_what_is_not_known() -> None:
    found = read_environment(['NCCL_DEBUG="hunter2"', 'NCCL_TOPO_FILE="/etc/topo.xml"', 'NCCL_ALGO="Ring"'])
    assert {name: (value.value, value.source) for name, value in found.items()} == {
        "NCCL_ALGO": ("Ring", "environment"),
        "NCCL_DEBUG": (None, f"environment: {NOT_SHOWN}"),
        "NCCL_TOPO_FILE": (None, f"environment: {NOT_SHOWN}"),
    }


def test_the_user_is_shown_the_form_and_may_set_a_value_of_it() -> None:
    assert read_user_settings(["env_vars.NCCL_DEBUG=INFO"]).environment["NCCL_DEBUG"].value == "INFO"
    with pytest.raises(UsageError, match="--set NCCL_CHECK_MODE: expected one of DEFAULT, DEBUG_LOCAL, DEBUG_GLOBAL"):
        read_user_settings(["env_vars.NCCL_CHECK_MODE=hunter2"])
