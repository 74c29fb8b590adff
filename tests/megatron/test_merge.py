"""One configuration out of several sources."""

from __future__ import annotations

import pytest

from three_walls.lib.errors import UsageError
from three_walls.log.training_log import LogLayout, TrainingLog
from three_walls.megatron.settings.log_settings import read_argument_block, read_log_settings
from three_walls.megatron.settings.merge_settings import is_same, merge_sources
from three_walls.megatron.settings.option_words import read_command_line, read_user_settings
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.megatron.settings.saved_config import read_dump
from three_walls.megatron.settings.setting_sources import SourceSettings

LINE = "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 8 --num-experts 8 --seq-length 128"


def launch(more: str = "") -> SourceSettings:
    return read_command_line([*LINE.split(), *more.split()])


def test_the_source_of_highest_precedence_counts_and_the_others_are_listed() -> None:
    user = read_user_settings(["num_layers=1"])
    file = read_dump("model: {num_layers: 2}", "config file", "x")
    log = read_argument_block([("num_layers", "3")])
    merged = merge_sources([user, file, log, launch()])
    assert merged.values["num_layers"] == ConfigValue(1, "--set")
    (conflict,) = merged.conflicts
    assert conflict.key == "num_layers"
    assert [(value.value, value.source) for value in conflict.values] == [
        (1, "--set"),
        (2, "config file"),
        (3, "log arguments"),
        (4, "command line"),
    ]


def test_sources_that_agree_confirm_each_other() -> None:
    merged = merge_sources([read_argument_block([("num_layers", "4")]), launch()])
    assert merged.values["num_layers"] == ConfigValue(4, "log arguments", ("command line",))
    assert merged.values["num_layers"].is_stated_by("command line")
    assert merged.conflicts == ()


@pytest.mark.parametrize(("written", "disagrees"), [("null", False), ("30000000", True)])
def test_what_megatron_core_filled_in_does_not_contradict_what_was_left_unset(written: str, disagrees: bool) -> None:
    file = read_dump(f"ddp: {{bucket_size: {written}}}", "config file", "x")
    (set_up,) = read_log_settings(TrainingLog(config_objects=(("ddp.bucket_size", "40000000"),)))
    for sources in ([file, set_up], [set_up, file]):
        assert bool(merge_sources(sources).conflicts) is disagrees


@pytest.mark.parametrize(("name", "disagrees"), [("bf16_with_fp8_current_scaling_mixed", False), (None, True)])
def test_the_name_of_a_precision_recipe_does_not_contradict_the_object_made_of_it(
    name: str | None, disagrees: bool
) -> None:
    file = read_dump(
        "mixed_precision: {_target_: megatron.bridge.training.mixed_precision.MixedPrecisionConfig, bf16: true}",
        "config file",
        "x",
    )
    command = read_command_line(["train.py", f"mixed_precision={name}" if name else "mixed_precision=null"])
    for sources in ([file, command], [command, file]):
        assert bool(merge_sources(sources).conflicts) is disagrees


def test_names_of_two_precision_recipes_contradict_each_other() -> None:
    user = read_user_settings(["mixed_precision=bf16_mixed"])
    command = read_command_line(["train.py", "mixed_precision=fp16_mixed"])
    assert "mixed_precision" in [conflict.key for conflict in merge_sources([user, command]).conflicts]


@pytest.mark.parametrize(("written", "disagrees"), [("None", False), ("32000", True)])
def test_a_size_that_the_log_prints_once_it_is_known_contradicts_no_unset_size(written: str, disagrees: bool) -> None:
    arguments = read_argument_block([("padded_vocab_size", written)])
    (layout,) = read_log_settings(TrainingLog(layout=LogLayout(padded_vocab_size=32128)))
    assert bool(merge_sources([arguments, layout]).conflicts) is disagrees


def test_a_default_is_no_source_that_could_disagree() -> None:
    merged = merge_sources([read_argument_block([("moe_router_topk", "6")]), launch()])
    assert (merged.get("moe_router_topk"), merged.conflicts) == (6, ())
    assert merge_sources([launch()]).values["moe_router_topk"] == ConfigValue(2, "Megatron-LM default")


def test_what_follows_from_a_setting_follows_the_merged_one() -> None:
    merged = merge_sources([read_user_settings(["tensor_model_parallel_size=2"]), launch("--sequence-parallel")])
    assert merged.values["expert_tensor_parallel_size"] == ConfigValue(2, "derived: tensor_model_parallel_size")
    assert merged.get("sequence_parallel") is True  # with one tensor-parallel rank Megatron-LM turns it off
    assert merge_sources([launch("--sequence-parallel")]).get("sequence_parallel") is False


def test_what_the_launcher_has_worked_out_is_not_derived_again() -> None:
    log = read_argument_block(
        [("virtual_pipeline_model_parallel_size", "2"), ("pipeline_model_parallel_layout", "Et|L")]
    )
    assert merge_sources([log, launch()]).get("virtual_pipeline_model_parallel_size") == 2


def test_the_release_comes_from_the_first_source_that_gives_it() -> None:
    file = read_dump(
        "model: {}\ntrain: {micro_batch_size: 1}\noptimizer: {}\nddp: {}\nenv_vars: {}", "config file", "x"
    )
    config = merge_sources([file, read_command_line(["run_recipe.py", "--recipe", "x"])])
    assert (config.bridge_version, config.dialect) == ("0.6", "bridge")
    assert config.bridge_version_evidence == "config file: env_vars came with 0.6"


def test_a_release_that_is_stated_counts_before_one_that_is_inferred() -> None:
    file = SourceSettings("config file", bridge_version="0.6", bridge_version_evidence="env_vars came with 0.6")
    config = merge_sources([file], "0.5.1")
    assert (config.bridge_version, config.bridge_version_evidence) == ("0.5.1", "")


def run_of(recipe: str, release: str | None, *overrides: str) -> RunConfig:
    """A run whose command line shows its recipe, and another source its release."""
    command_line = read_command_line(["run_recipe.py", "--recipe", recipe, *overrides])
    return merge_sources([SourceSettings("config file", bridge_version=release), command_line])


@pytest.mark.parametrize(
    ("recipe", "release", "section"),
    [
        ("qwen3_30b_a3b_pretrain_config", "0.3", None),
        ("qwen3_30b_a3b_pretrain_config", "0.6", "CommOverlapConfig"),
        ("deepseek_v3_pretrain_config", "0.3", "CommOverlapConfig"),
        ("deepseek_v3_pretrain_config", None, "CommOverlapConfig"),
    ],
)
def test_a_recipe_shows_whether_the_run_has_a_comm_overlap_section(
    recipe: str, release: str | None, section: str | None
) -> None:
    config = run_of(recipe, release)
    assert (config.knows("comm_overlap"), config.get("comm_overlap")) == (True, section)
    assert config.values["comm_overlap"].source == f"derived: recipe {recipe}"


@pytest.mark.parametrize("recipe", ["qwen3_30b_a3b_pretrain_config", "a_recipe_of_the_user", "--gpus"])
def test_a_recipe_that_differs_between_releases_or_is_not_known_shows_no_section(recipe: str) -> None:
    assert not run_of(recipe, None).knows("comm_overlap")


def test_the_release_that_the_user_states_is_that_of_the_recipe() -> None:
    sources = [read_command_line(["run_recipe.py", "--recipe", "qwen3_30b_a3b_pretrain_config"])]
    assert merge_sources(sources, "0.6.2").get("comm_overlap") == "CommOverlapConfig"
    assert merge_sources(sources, "0.3.1").get("comm_overlap") is None


def test_the_command_line_wins_over_the_recipe() -> None:
    removed = run_of("deepseek_v3_pretrain_config", "0.3", "comm_overlap=null")
    assert (removed.knows("comm_overlap"), removed.get("comm_overlap")) == (True, None)
    delayed = run_of("deepseek_v3_pretrain_config", "0.3", "comm_overlap.delay_wgrad_compute=true")
    assert delayed.get("delay_wgrad_compute") is True


def test_a_recipe_shows_the_fields_that_bridge_copies_to_the_model_as_they_are() -> None:
    config = run_of("deepseek_v3_pretrain_config", "0.3")
    assert (config.get("overlap_moe_expert_parallel_comm"), config.get("delay_wgrad_compute")) == (False, False)
    assert not config.knows("overlap_grad_reduce")


def test_tensor_parallel_overlap_of_a_recipe_needs_tensor_and_sequence_parallelism() -> None:
    parallel = ("model.tensor_model_parallel_size=2", "model.sequence_parallel=true")
    assert run_of("llama31_405b_sft_config", "0.3", *parallel).get("tp_comm_overlap") is True
    assert not run_of("llama31_405b_sft_config", "0.3").knows("tp_comm_overlap")


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("moe_token_dispatcher_type=flex", "moe_token_dispatcher_type", "flex"),
        ("model.recompute_modules=[moe_act,layernorm]", "recompute_modules", ("moe_act", "layernorm")),
        ("recompute_modules=moe_act", "recompute_modules", ("moe_act",)),
        ("comm_overlap.delay_wgrad_compute=true", "delay_wgrad_compute", True),
        ("mixed_precision=bf16_with_mxfp8_mixed", "fp8_recipe", "mxfp8"),
        ("num_layers_in_first_pipeline_stage=null", "num_layers_in_first_pipeline_stage", None),
        ("moe_expert_capacity_factor=1", "moe_expert_capacity_factor", 1.0),
    ],
)
def test_a_user_sets_keys_by_name_and_by_path(word: str, key: str, value: object) -> None:
    assert read_user_settings([word]).values[key].value == value


def test_the_last_setting_of_a_key_counts() -> None:
    assert read_user_settings(["num_layers=1", "model.num_layers=2"]).values["num_layers"].value == 2


def test_a_user_states_the_environment() -> None:
    config = merge_sources([read_user_settings(["env_vars.WORLD_SIZE=64"])])
    assert config.environment["WORLD_SIZE"] == ConfigValue("64", "--set")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("moe_token_dispatcher=flex", "did you mean moe_token_dispatcher_type"),
        ("model.num_layer=3", "did you mean model.num_layers"),
        ("moe_token_dispatcher_type=flexx", "expected one of allgather, alltoall, flex, found flexx"),
        ("num_layers=many", "expected a value of type int, found many"),
        ("num_layers", "expected key=value, found 'num_layers'"),
        ("+num_layers=3", "expected key=value"),
        ("", "expected key=value"),
        ("env_vars.WANDB_API_KEY=x", "WANDB_API_KEY is not an environment variable that three-walls reads"),
    ],
)
def test_a_mistake_of_the_user_is_one_line(word: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_user_settings([word])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unset_and_an_empty_list_are_the_same() -> None:
    assert is_same(None, ()) and is_same(("p2p",), "p2p")
    assert not is_same(None, False)
