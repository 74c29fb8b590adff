"""Settings in logs: Megatron-LM's arguments block, Bridge's dump and its summary."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from three_walls.log.training_log import LogLayout, TrainingLog
from three_walls.megatron.settings.log_settings import (
    _literal,
    read_argument_block,
    read_log_settings,
    read_printed,
    read_summary,
)
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.tables.config_keys import config_keys

# As core_v0.16.1 prints them.
BLOCK = (
    ("accumulate_allreduce_grads_in_fp32", "True"),
    ("attention_backend", "AttnBackend.unfused"),
    ("check_for_nan_in_loss_and_grad", "False"),
    ("config_logger_dir", ""),
    ("cp_comm_type", "['p2p']"),
    ("cuda_graph_scope", "[<CudaGraphScope.attn: 2>, <CudaGraphScope.moe_router: 5>]"),
    ("data_parallel_size", "4"),
    ("decoder_first_pipeline_num_layers", "None"),
    ("exp_avg_dtype", "torch.float32"),
    ("grad_reduce_in_bf16", "False"),
    ("moe_aux_loss_coeff", "0.001"),
    ("moe_layer_freq", "[0, 1, 1]"),
    ("no_persist_layer_norm", "True"),
    ("num_experts", "128"),
    ("profile_ranks", "[0, 1]"),
    ("vocab_size", "32000"),
    ("wandb_key", "s3cr3t"),
    ("world_size", "4"),
)


def test_an_arguments_block_is_read() -> None:
    found = read_argument_block(BLOCK)
    assert {name: value.value for name, value in found.values.items()} == {
        "grad_reduce_in_fp32": True,
        "attention_backend": "unfused",
        "check_for_nan_in_loss": False,
        "check_for_nan_in_grad": False,
        "cp_comm_type": "p2p",
        "cuda_graph_scope": ("attn", "moe_router"),
        "num_layers_in_first_pipeline_stage": None,
        "exp_avg_dtype": "fp32",
        "moe_aux_loss_coeff": 0.001,
        "moe_layer_freq": (0, 1, 1),
        "persist_layer_norm": False,
        "num_moe_experts": 128,
        "profile_ranks": (0, 1),
        "vocab_size": 32000,
    }
    assert {name: value.value for name, value in found.sizes.items()} == {"data_parallel_size": 4, "world_size": 4}
    assert (found.dialect, found.warnings, "s3cr3t" in repr(found)) == ("megatron_lm", (), False)


@pytest.mark.parametrize(
    ("arguments", "release"),
    [
        ([], None),
        (["moe_use_legacy_grouped_gemm"], "0.16"),
        (["moe_permute_fusion_into_hybridep"], "0.17"),
        (["moe_permute_fusion_into_hybridep", "moe_paged_stash"], "0.18"),
        (["moe_permute_fusion_into_hybridep", "moe_flex_dispatcher_num_sms", "moe_paged_stash"], "0.19"),
    ],
)
def test_the_newest_argument_shows_the_release_of_megatron_core(arguments: list[str], release: str | None) -> None:
    block = (*BLOCK, *((name, "None") for name in arguments))
    assert merge_sources([read_argument_block(block)]).megatron_core_version == release


def test_a_release_of_megatron_core_that_the_log_states_counts() -> None:
    block = (*BLOCK, ("moe_use_legacy_grouped_gemm", "False"))
    log = TrainingLog(argument_block=block, versions=(("megatron_core", "0.16.1"),))
    assert merge_sources(read_log_settings(log)).megatron_core_version == "0.16.1"
    alone = TrainingLog(versions=(("megatron_core", "0.18.2"),))
    assert merge_sources(read_log_settings(alone)).megatron_core_version == "0.18.2"


@pytest.mark.parametrize(
    ("settings", "is_known", "section"),
    [
        ([("model.wgrad_deferral_limit", "-1"), ("train.train_iters", "5")], True, "CommOverlapConfig"),
        ([("model.num_layers", "4"), ("train.train_iters", "5")], True, None),
        ([("model.num_layers", "4")], False, None),  # the rest of the model may be missing
        ([("model.wgrad_deferral_limit", "22"), ("train.train_iters", "5")], False, None),  # set by either
        ([("model.defer_embedding_wgrad_compute", "True"), ("train.train_iters", "5")], False, None),
    ],
)
def test_a_summary_shows_whether_the_run_has_a_comm_overlap_section(
    settings: list[tuple[str, str]], is_known: bool, section: str | None
) -> None:
    config = merge_sources([read_summary(settings, release_is_known=True)])
    assert (config.knows("comm_overlap"), config.get("comm_overlap")) == (is_known, section)


def test_what_does_not_parse_is_withheld_with_a_warning() -> None:
    found = read_argument_block([("num_layers", "many")])
    assert found.values["num_layers"].is_withheld
    assert found.warnings == (
        "arguments in the log: num_layers: expected a whole number, found something else; not shown",
    )


SUMMARY = (
    ("optimizer.use_distributed_optimizer", "True"),
    ("ddp.overlap_grad_reduce", "True"),
    ("model.attention_backend", "<AttnBackend.flash: 1>"),
    ("model.fp8", "'e4m3'"),
    ("model.params_dtype", "torch.bfloat16"),
    ("train.micro_batch_size", "2"),
)


def test_a_summary_is_read() -> None:
    found = read_summary(SUMMARY, release_is_known=False)
    assert {name: value.value for name, value in found.values.items()} == {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "attention_backend": "flash",
        "fp8": "e4m3",
        "micro_batch_size": 2,
    }
    assert found.unknown == ("model.params_dtype",)


def test_what_a_summary_leaves_out_has_cores_default_only_where_the_release_is_known() -> None:
    log = TrainingLog(non_default_settings=SUMMARY, versions=(("megatron_bridge", "0.4.2"),))
    known = merge_sources(read_log_settings(log))
    assert known.values["moe_router_topk"].source == "Megatron Core default"
    assert (known.get("moe_router_topk"), known.bridge_version) == (2, "0.4.2")
    assert not known.knows("multi_latent_attention")  # true by default in the class of those models
    assert not merge_sources(read_log_settings(TrainingLog(non_default_settings=SUMMARY))).knows("moe_router_topk")


@pytest.mark.parametrize(
    ("core_class", "latent", "rank", "normalization"),
    [
        ("MLATransformerConfig", True, 512, "RMSNorm"),
        ("TransformerConfig", False, None, "LayerNorm"),
        ("OtherConfig", None, None, None),
    ],
)
def test_what_a_summary_leaves_out_has_the_default_of_the_class_that_it_names(
    core_class: str, latent: bool | None, rank: int | None, normalization: str | None
) -> None:
    found = read_summary([("model.core_class", core_class), *SUMMARY], release_is_known=False)
    config = merge_sources([found])
    names = ("multi_latent_attention", "kv_lora_rank", "normalization")
    assert tuple(config.get(name) for name in names) == (latent, rank, normalization)
    assert "model.core_class" not in found.unknown


def test_the_default_of_a_class_is_not_put_before_what_a_summary_states() -> None:
    stated = [("model.core_class", "MLATransformerConfig"), *SUMMARY, ("model.kv_lora_rank", "256")]
    assert merge_sources([read_summary(stated, release_is_known=False)]).get("kv_lora_rank") == 256


def test_a_summary_that_is_torn_before_its_second_section_leaves_defaults_open() -> None:
    torn = [("model.core_class", "MLATransformerConfig"), ("model.fp8", "'e4m3'")]
    assert not merge_sources([read_summary(torn, release_is_known=False)]).knows("multi_latent_attention")


@pytest.mark.parametrize(
    ("version", "nearest"),
    [("0.4.0", ""), ("0.4.0+d728871", ""), ("0.6.3", "0.6.2"), ("0.7.0", "main (a snapshot of ")],
)
def test_a_release_of_which_nothing_is_known_is_said(version: str, nearest: str) -> None:
    log = TrainingLog(non_default_settings=SUMMARY, versions=(("megatron_bridge", version),))
    said = [warning for warning in read_log_settings(log)[0].warnings if "no data of Megatron-Bridge" in warning]
    assert len(said) == bool(nearest)
    assert all(f"what is known of {nearest}" in warning for warning in said)


def test_a_torn_dump_is_a_warning_and_the_rest_counts() -> None:
    block, dump = read_log_settings(TrainingLog(argument_block=BLOCK, config_dump="model: {num_layers: [1,"))
    assert block.values["num_moe_experts"].value == 128
    assert "found invalid YAML" in dump.warnings[0]
    assert dump.dialect == "unknown"


def test_sizes_that_a_log_prints_are_settings_and_sizes() -> None:
    printed = LogLayout(world_size=16, data_parallel_size=8, pipeline_model_parallel_size=2)
    (found,) = read_log_settings(TrainingLog(layout=printed))
    assert {name: value.value for name, value in found.values.items()} == {"pipeline_model_parallel_size": 2}
    assert {name: value.value for name, value in found.sizes.items()} == {"world_size": 16, "data_parallel_size": 8}


def test_what_megatron_core_set_up_counts_before_what_bridge_was_given_and_after_its_summary() -> None:
    objects = (
        ("ddp.overlap_grad_reduce", "True"),
        ("ddp.bucket_size", "None"),
        ("ddp.average_in_collective", "False"),
        ("optimizer.main_grads_dtype", "torch.float32"),
        ("optimizer.timers", "<megatron.core.timers.Timers object at 0x7f>"),
        ("optimizer.fp8_recipe", "'delayed'"),
    )
    dump = "_target_: megatron.bridge.training.config.ConfigContainer\nddp:\n  overlap_grad_reduce: false\n"
    summary = (("ddp.average_in_collective", "True"),)
    found = read_log_settings(TrainingLog(config_dump=dump, non_default_settings=summary, config_objects=objects))
    assert [source.source for source in found] == ["log summary", "log set-up", "log config"]
    assert dict(found[1].values) == {
        "overlap_grad_reduce": ConfigValue(True, "log set-up"),
        "ddp_bucket_size": ConfigValue(None, "log set-up"),
        "ddp_average_in_collective": ConfigValue(False, "log set-up"),
        "main_grads_dtype": ConfigValue("fp32", "log set-up"),
    }
    merged = merge_sources(found)
    assert merged.get("overlap_grad_reduce") is True
    assert merged.get("ddp_average_in_collective") is True
    assert [conflict.key for conflict in merged.conflicts] == ["ddp_average_in_collective", "overlap_grad_reduce"]


def test_the_gpus_of_a_progress_file_are_the_last_source_of_the_world_size() -> None:
    alone = merge_sources(read_log_settings(TrainingLog(), progress_gpus=16))
    assert alone.sizes["world_size"] == ConfigValue(16, "progress file")
    both = merge_sources(read_log_settings(TrainingLog(layout=LogLayout(world_size=8)), progress_gpus=16))
    assert both.sizes["world_size"].value == 8
    (conflict,) = both.conflicts
    assert (conflict.key, [value.source for value in conflict.values]) == (
        "world_size",
        ["log layout", "progress file"],
    )
    agreeing = TrainingLog(layout=LogLayout(world_size=16))
    assert merge_sources(read_log_settings(agreeing, progress_gpus=16)).conflicts == ()


def test_a_log_without_settings_gives_no_source() -> None:
    assert read_log_settings(TrainingLog(versions=(("torch", "2.9"),))) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None),
        ("none", "none"),
        ("True", True),
        ("1e-05", 1e-05),
        ("-1", -1),
        ("", ""),
        ("[]", ()),
        ("['a', 'b']", ("a", "b")),
        ("'quoted'", "quoted"),
        ("[[[", "[[["),
        ("functools.partial(<x>)", "functools.partial(<x>)"),
        ("8.5.1", "8.5.1"),
    ],
)
def test_values_are_read_as_python_prints_them(text: str, value: object) -> None:
    assert read_printed(text) == value


@given(st.text(max_size=60))
def test_no_value_makes_the_reader_fail(text: str) -> None:
    read_argument_block([(name, text) for name in ("num_layers", "cp_comm_type", "bf16", "attention_backend")])


@given(st.data())
def test_every_value_of_every_key_is_read_back_from_a_block(data: st.DataObject) -> None:
    with_values = [key for key in config_keys().keys.values() if key.values and key.megatron_lm is not None]
    key = data.draw(st.sampled_from(with_values))
    value = data.draw(st.sampled_from(key.values))
    printed = repr([value]) if "list" in key.type else str(value)
    found = read_argument_block([(key.name, printed)]).values[key.name].value
    assert found == ((value,) if key.type in ("list", "int_list") else value)


def test_a_literal_of_which_python_warns_is_read_without_a_word() -> None:
    """Python 3.12 warns of ``40.inf`` on stderr; elsewhere the tests take the warning for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _literal("40.inf") is None
        assert _literal("[1, 2]") == [1, 2]
