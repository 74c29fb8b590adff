"""Edits are spelled so that the launcher takes them, whatever the run's configuration holds."""

from types import SimpleNamespace

import pytest

from tests.bridge.builders import edit, spelled
from three_walls.bridge.render_bridge import write_value
from three_walls.bridge.render_overrides import NEWEST_BRIDGE, spell
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig

CLASS = "++comm_overlap._target_=megatron.bridge.training.comm_overlap.CommOverlapConfig"
MEGATRON = "pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --micro-batch-size 1"
BRIDGE = "run_recipe.py --recipe some_config"


@pytest.mark.parametrize(
    ("key", "to", "bridge", "megatron_lm"),
    [
        (
            "moe_token_dispatcher_type",
            "flex",
            "model.moe_token_dispatcher_type=flex",
            "--moe-token-dispatcher-type flex",
        ),
        ("moe_permute_fusion", True, "model.moe_permute_fusion=true", "--moe-permute-fusion"),
        (
            "gradient_accumulation_fusion",
            False,
            "model.gradient_accumulation_fusion=false",
            "--no-gradient-accumulation-fusion",
        ),
        (
            "optimizer_offload_fraction",
            0.5,
            "optimizer.optimizer_offload_fraction=0.5",
            "--optimizer-offload-fraction 0.5",
        ),
        ("num_moe_experts", 64, "model.num_moe_experts=64", "--num-experts 64"),
        ("check_for_nan_in_grad", False, "ddp.check_for_nan_in_grad=false", "--no-check-for-nan-in-loss-and-grad"),
        ("cp_comm_type", "a2a+p2p", "model.cp_comm_type=a2a+p2p", "--cp-comm-type a2a+p2p"),
        (
            "pipeline_model_parallel_layout",
            "Et*3|(tt|)*29m|L",
            'model.pipeline_model_parallel_layout="Et*3|(tt|)*29m|L"',
            "--pipeline-model-parallel-layout Et*3|(tt|)*29m|L",
        ),
    ],
)
def test_an_edit_is_spelled_for_both_launchers(key: str, to: ConfigData, bridge: str, megatron_lm: str) -> None:
    found = spelled(edit(key, to))
    assert (found.bridge, found.megatron_lm, found.notes) == ((bridge,), (megatron_lm,), ())


def test_a_graph_scope_empties_the_list_that_excludes_it_where_the_release_has_one() -> None:
    scope = edit("cuda_graph_scope", ("moe_router", "moe_preprocess"))
    line = "model.cuda_graph_scope=[moe_router,moe_preprocess]"
    assert spelled(scope, version="0.4.2").bridge == (line,)
    used = spelled(scope, run=f"{BRIDGE} model.cuda_graph_scope=[attn]", version="0.5.1")
    assert used.bridge == (line, "model.cuda_graph_modules=[]")
    assert spelled(scope, version=None).megatron_lm == ("--cuda-graph-scope moe_router moe_preprocess",)
    unknown = spelled(scope, version=None)
    assert (unknown.bridge, unknown.conditional) == ((line, "++model.cuda_graph_modules=[]"), ())


def test_a_release_with_graph_modules_gets_them_and_the_older_list_emptied() -> None:
    modules = spelled(edit("cuda_graph_scope", ("moe_router", "attn")), version="0.6.2")
    assert modules.bridge == ("model.cuda_graph_modules=[moe_router,attn]", "model.cuda_graph_scope=null")
    assert modules.python == (
        "cfg.model.cuda_graph_modules = ['moe_router', 'attn']",
        "cfg.model.cuda_graph_scope = None",
    )
    assert modules.megatron_lm == ("--cuda-graph-modules moe_router attn",)
    whole = spelled(edit("cuda_graph_scope", ("full_iteration",)), version="0.6.2")  # no module
    assert whole.bridge[0] == "model.cuda_graph_scope=[full_iteration]"


def test_the_rng_tracker_is_set_in_both_of_its_places() -> None:
    found = spelled(edit("te_rng_tracker", True))
    assert found.bridge == ("model.use_te_rng_tracker=true", "rng.te_rng_tracker=true")
    assert found.megatron_lm == ("--te-rng-tracker",)


WITH_SECTION = RunConfig({"comm_overlap": ConfigValue("CommOverlapConfig", "config file")})
WITHOUT_SECTION = RunConfig({"comm_overlap": ConfigValue(None, "config file")})
DATA_PARALLEL = [edit("overlap_grad_reduce", True), edit("overlap_param_gather", True)]


def test_a_run_with_a_comm_overlap_section_gets_its_fields_and_nothing_else() -> None:
    found = spell([edit("delay_wgrad_compute", True), *DATA_PARALLEL], WITH_SECTION, NEWEST_BRIDGE)
    assert found.bridge == (
        "comm_overlap.delay_wgrad_compute=true",
        "comm_overlap.overlap_grad_reduce=true",
        "comm_overlap.overlap_param_gather=true",
    )
    assert (found.notes, found.conditional) == ((), ())
    assert found.python == (
        "cfg.comm_overlap.delay_wgrad_compute = True",
        "cfg.comm_overlap.overlap_grad_reduce = True",
        "cfg.comm_overlap.overlap_param_gather = True",
    )


def test_a_run_without_the_section_gets_the_places_that_the_section_would_be_copied_to() -> None:
    found = spell([edit("delay_wgrad_compute", True), *DATA_PARALLEL], WITHOUT_SECTION, NEWEST_BRIDGE)
    assert found.bridge == (
        "model.delay_wgrad_compute=true",
        "ddp.delay_wgrad_compute=true",
        "ddp.overlap_grad_reduce=true",
        "optimizer.overlap_param_gather=true",
        "ddp.overlap_param_gather=true",
    )
    assert (found.notes, found.conditional) == ((), ())
    assert found.python[0] == "cfg.model.delay_wgrad_compute = True"


@pytest.mark.parametrize("config", [WITH_SECTION, WITHOUT_SECTION, RunConfig()])
@pytest.mark.parametrize("version", ["0.3.1", "0.4.2", "0.5.1", "0.6.2", None])
def test_no_line_turns_tensor_parallel_overlap_off_or_builds_the_section(
    config: RunConfig, version: str | None
) -> None:
    keys = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "overlap_p2p_comm", "align_param_gather")
    found = spell([*(edit(key, True) for key in keys), *DATA_PARALLEL], config, version)
    lines = [*found.bridge, *found.python, *(line for block in found.conditional for line in block.lines)]
    assert lines
    assert not [
        line for line in lines if "tp_comm_overlap" in line or "_target_" in line or "CommOverlapConfig" in line
    ]


def test_where_the_section_is_not_known_the_lines_for_a_recipe_without_it_stand_apart() -> None:
    found = spelled(edit("overlap_moe_expert_parallel_comm", True), *DATA_PARALLEL)
    assert found.bridge == (
        "comm_overlap.overlap_moe_expert_parallel_comm=true",
        "comm_overlap.overlap_grad_reduce=true",
        "comm_overlap.overlap_param_gather=true",
    )
    (without,) = found.conditional
    assert (without.launcher, without.lines) == (
        "bridge",
        (
            "model.overlap_moe_expert_parallel_comm=true",
            "ddp.overlap_grad_reduce=true",
            "optimizer.overlap_param_gather=true",
            "ddp.overlap_param_gather=true",
        ),
    )
    assert "a recipe without a comm_overlap section" in without.condition
    assert "check cfg.comm_overlap first" in found.notes[0]
    assert found.python == (
        "(cfg.comm_overlap or cfg.model).overlap_moe_expert_parallel_comm = True",
        "(cfg.comm_overlap or cfg.ddp).overlap_grad_reduce = True",
        "(cfg.comm_overlap or cfg.optimizer).overlap_param_gather = True",
        "(cfg.comm_overlap or cfg.ddp).overlap_param_gather = True",
    )


@pytest.mark.parametrize("has_section", [True, False])
def test_python_for_a_recipe_that_is_not_known_sets_the_field_where_it_takes_effect(has_section: bool) -> None:
    sections = {name: SimpleNamespace() for name in ("model", "ddp", "optimizer")}
    section = SimpleNamespace(tp_comm_overlap=True) if has_section else None
    found = spelled(edit("overlap_moe_expert_parallel_comm", True), *DATA_PARALLEL)
    exec("\n".join(found.python), {"cfg": SimpleNamespace(comm_overlap=section, **sections)})
    fields = {"overlap_grad_reduce": True, "overlap_param_gather": True, "overlap_moe_expert_parallel_comm": True}
    if section is not None:
        assert vars(section) == {"tp_comm_overlap": True, **fields}
        assert not any(map(vars, sections.values()))
    else:
        assert vars(sections["model"]) == {"overlap_moe_expert_parallel_comm": True}
        assert vars(sections["ddp"]) == {"overlap_grad_reduce": True, "overlap_param_gather": True}
        assert vars(sections["optimizer"]) == {"overlap_param_gather": True}


def test_a_section_that_the_command_line_builds_gets_appended_fields() -> None:
    run = f"{BRIDGE} {CLASS} ++comm_overlap.tp_comm_overlap=false"
    assert spelled(edit("delay_wgrad_compute", True), run=run).bridge == ("++comm_overlap.delay_wgrad_compute=true",)


def test_without_the_distributed_optimizer_data_parallel_overlap_is_set_where_the_section_is_not_copied_to() -> None:
    values = dict(WITH_SECTION.values) | {"use_distributed_optimizer": ConfigValue(False, "config file")}
    found = spell([edit("overlap_grad_reduce", True), edit("tp_comm_overlap", True)], RunConfig(values), NEWEST_BRIDGE)
    assert found.bridge == ("ddp.overlap_grad_reduce=true", "comm_overlap.tp_comm_overlap=true")


def test_a_run_that_shows_its_comm_overlap_gets_plain_overrides() -> None:
    found = spelled(edit("delay_wgrad_compute", True), run=f"{BRIDGE} comm_overlap.tp_comm_overlap=true")
    assert found.bridge == ("comm_overlap.delay_wgrad_compute=true",)


def test_a_switch_without_a_negation_is_a_flag_to_remove() -> None:
    found = spelled(edit("moe_permute_fusion", False), run=f"{MEGATRON} --moe-permute-fusion")
    assert found.megatron_lm == ()
    assert found.notes == ("Megatron-LM: remove --moe-permute-fusion",)
    assert found.bridge == ("model.moe_permute_fusion=false",)


def test_unsetting_is_removing_the_flag_and_null() -> None:
    run = f"{MEGATRON} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    keys = ("recompute_granularity", "recompute_method", "recompute_num_layers")
    found = spelled(*(edit(key, None) for key in keys), run=run)
    assert found.bridge == tuple(f"model.{key}=null" for key in keys)
    assert found.megatron_lm == ()
    assert found.notes == (
        "Megatron-LM: remove --recompute-granularity (or --recompute-activations)",
        "Megatron-LM: remove --recompute-method",
        "Megatron-LM: remove --recompute-num-layers",
    )


def test_what_is_a_default_already_needs_no_flag() -> None:
    found = spelled(edit("recompute_method", None), edit("moe_shared_expert_overlap", False), run=MEGATRON)
    assert (found.megatron_lm, found.notes) == ((), ())


def test_a_derived_value_is_written_since_other_edits_may_move_it() -> None:
    found = spelled(edit("tensor_model_parallel_size", 2), edit("expert_tensor_parallel_size", 1), run=MEGATRON)
    assert found.megatron_lm == ("--tensor-model-parallel-size 2", "--expert-tensor-parallel-size 1")


def test_a_flag_that_cannot_be_combined_with_the_new_one_has_to_go() -> None:
    run = f"{MEGATRON} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
    found = spelled(edit("virtual_pipeline_model_parallel_size", 4), run=run)
    assert found.megatron_lm == ("--num-virtual-stages-per-pipeline-rank 4",)
    assert found.notes == (
        "Megatron-LM: remove --num-layers-per-virtual-pipeline-stage: "
        "it cannot be combined with --num-virtual-stages-per-pipeline-rank",
    )


def test_a_run_that_gives_graph_modules_gets_graph_modules() -> None:
    new = edit("cuda_graph_scope", ("attn",))
    assert spelled(new, run=f"{BRIDGE} model.cuda_graph_modules=[moe_router]").bridge == (
        "model.cuda_graph_modules=[attn]",
    )
    assert spelled(new, run=f"{MEGATRON} --cuda-graph-modules moe_router").megatron_lm == ("--cuda-graph-modules attn",)


@pytest.mark.parametrize(
    ("version", "key", "expected"),
    [
        ("0.3.1", "moe_deepep_num_sms", "model.moe_deepep_num_sms=24"),
        ("0.5.1", "moe_flex_dispatcher_num_sms", "model.moe_deepep_num_sms=24"),
        ("0.6.2", "moe_hybridep_num_sms", "model.moe_flex_dispatcher_num_sms=24"),
        ("main", "moe_flex_dispatcher_num_sms", "model.moe_flex_dispatcher_num_sms=24"),
    ],
)
def test_the_number_of_sms_has_a_name_per_release(version: str, key: str, expected: str) -> None:
    assert spelled(edit(key, 24), version=version).bridge == (expected,)


def test_the_backend_among_the_edits_decides_the_older_name() -> None:
    found = spelled(
        edit("moe_flex_dispatcher_backend", "hybridep"), edit("moe_flex_dispatcher_num_sms", 32), version="0.4.2"
    )
    assert found.bridge == ("model.moe_flex_dispatcher_backend=hybridep", "model.moe_hybridep_num_sms=32")


def test_what_a_release_lacks_is_a_note() -> None:
    found = spelled(
        edit("moe_permute_fusion_into_hybridep", True), edit("cuda_graph_impl", "full_iteration"), version="0.3.1"
    )
    assert found.bridge == ()
    assert "Megatron-Bridge: moe_permute_fusion_into_hybridep needs release 0.4 or later" in found.notes
    assert "Megatron-Bridge: cuda_graph_impl=full_iteration needs release 0.5 or later" in found.notes


def test_fields_of_a_named_precision_cannot_be_overridden() -> None:
    assert "grad_reduce_in_fp32=false" in spelled(edit("grad_reduce_in_fp32", False)).notes[0]
    shown = spelled(edit("grad_reduce_in_fp32", False), run=f"{BRIDGE} mixed_precision.fp8_param_gather=true")
    assert shown.bridge == ("mixed_precision.grad_reduce_in_fp32=false",)


def test_an_unknown_release_gets_what_every_release_takes_and_the_rest_apart() -> None:
    edits = [
        edit("moe_router_fusion", True),
        edit("moe_permute_fusion_into_hybridep", True),
        edit("moe_flex_dispatcher_num_sms", 24),
        edit("NCCL_GRAPH_REGISTER", "0", "env"),
    ]
    found = spelled(*edits, version=None)
    assert (found.bridge_version, found.bridge) == (f"0.3.1 to {NEWEST_BRIDGE}", ("model.moe_router_fusion=true",))
    assert found.notes == (
        "Megatron-Bridge: the run's release is not known, so the overrides are those that every release from 0.3.1 to "
        f"{NEWEST_BRIDGE} takes",
    )
    apart = {block.condition: block.lines for block in found.conditional if block.launcher == "bridge"}
    assert apart == {
        "needs release 0.5 or earlier": ("model.moe_deepep_num_sms=24",),
        "needs release 0.4 or later": ("model.moe_permute_fusion_into_hybridep=true",),
        "needs release 0.6 or later": (
            "model.moe_flex_dispatcher_num_sms=24",
            '++env_vars.NCCL_GRAPH_REGISTER="0"',
        ),
    }
    known = spell([edit("moe_router_fusion", True)], RunConfig(bridge_version="0.5.1"), None)
    assert (known.bridge_version, known.notes, known.conditional) == ("0.5.1", (), ())


NEW_FLAGS = [
    edit("moe_router_fusion", True),
    edit("moe_permute_fusion_into_hybridep", True),
    edit("high_priority_a2a_comm_stream", True),
    edit("moe_flex_dispatcher_num_sms", 24),
]


@pytest.mark.parametrize(
    ("core", "flags"),
    [
        ("0.16.1", ("--moe-router-fusion", "--moe-deepep-num-sms 24")),
        ("0.17.0", ("--moe-router-fusion", "--moe-permute-fusion-into-hybridep", "--moe-deepep-num-sms 24")),
        (
            "0.19.2",
            (
                "--moe-router-fusion",
                "--moe-permute-fusion-into-hybridep",
                "--high-priority-a2a-comm-stream",
                "--moe-flex-dispatcher-num-sms 24",
            ),
        ),
    ],
)
def test_a_megatron_lm_block_has_the_flags_that_the_release_of_the_run_knows(core: str, flags: tuple[str, ...]) -> None:
    assert spell(NEW_FLAGS, RunConfig(megatron_core_version=core), None).megatron_lm == flags


def test_flags_that_are_newer_than_the_run_stand_apart() -> None:
    found = spell(NEW_FLAGS, RunConfig(megatron_core_version="0.16.1"), None)
    apart = {block.condition: block.lines for block in found.conditional if block.launcher == "megatron_lm"}
    assert apart == {
        "needs Megatron Core 0.17 or later": ("--moe-permute-fusion-into-hybridep",),
        "needs Megatron Core 0.18 or later": ("--high-priority-a2a-comm-stream",),
    }
    assert not [note for note in found.notes if "Megatron Core" in note]


def test_an_unknown_release_of_megatron_lm_gets_the_flags_of_every_release() -> None:
    found = spell(NEW_FLAGS, RunConfig(), None)
    assert found.megatron_lm == ("--moe-router-fusion",)
    apart = {block.condition: block.lines for block in found.conditional if block.launcher == "megatron_lm"}
    assert apart["needs Megatron Core 0.18 or earlier"] == ("--moe-deepep-num-sms 24",)
    assert apart["needs Megatron Core 0.19 or later"] == ("--moe-flex-dispatcher-num-sms 24",)


def test_a_flag_that_the_command_line_has_shows_the_oldest_release_that_it_may_be() -> None:
    run = f"{MEGATRON} --moe-paged-stash"  # came with 0.18
    found = spelled(*NEW_FLAGS[:3], run=run, version=None)
    assert found.megatron_lm == (
        "--moe-router-fusion",
        "--moe-permute-fusion-into-hybridep",
        "--high-priority-a2a-comm-stream",
    )
    assert not [block for block in found.conditional if block.launcher == "megatron_lm"]


def test_a_value_that_is_newer_than_the_run_stands_apart() -> None:
    backend = edit("moe_flex_dispatcher_backend", "ncclep")
    old = spell([backend], RunConfig(megatron_core_version="0.18"), None)
    assert old.megatron_lm == ()
    assert [block.lines for block in old.conditional if block.launcher == "megatron_lm"] == [
        ("--moe-flex-dispatcher-backend ncclep",)
    ]
    new = spell([backend], RunConfig(megatron_core_version="0.19"), None)
    assert new.megatron_lm == ("--moe-flex-dispatcher-backend ncclep",)


def test_environment_is_sorted_and_the_later_edit_wins() -> None:
    found = spelled(
        edit("NCCL_GRAPH_REGISTER", "0", "env"),
        edit("CUDA_DEVICE_MAX_CONNECTIONS", 1, "env"),
        edit("moe_router_topk", 2),
        edit("CUDA_DEVICE_MAX_CONNECTIONS", 32, "env"),
        edit("moe_router_topk", 4),
        edit("NCCL_ALGO", None, "env"),
    )
    assert list(found.env.items()) == [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("NCCL_GRAPH_REGISTER", "0")]
    assert found.bridge == (
        "model.moe_router_topk=4",
        '++env_vars.CUDA_DEVICE_MAX_CONNECTIONS="32"',
        '++env_vars.NCCL_GRAPH_REGISTER="0"',
    )
    assert found.notes == ("Environment: unset NCCL_ALGO",)


@pytest.mark.parametrize(
    ("key", "to"), [("no_such_key", 1), ("moe_token_dispatcher_type", "pigeon"), ("num_layers", "x")]
)
def test_what_is_unknown_or_wrong_is_never_printed_as_a_line(key: str, to: ConfigData) -> None:
    found = spelled(edit(key, to))
    assert (found.bridge, found.megatron_lm) == ((), ())
    assert len(found.notes) == 1


def test_text_that_hydra_would_read_as_something_else_is_quoted() -> None:
    assert [write_value(value) for value in ("null", "True", "12", "a b", 'say "x"', "none", 1.5, None, ())] == [
        '"null"', '"True"', '"12"', '"a b"', '"say \\"x\\""', "none", "1.5", "null", "[]",
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["([0] * 3)", "([1] + [0] * 2)"])
def test_a_word_that_a_line_of_words_cannot_hold_is_a_note(word: str) -> None:
    found = spelled(edit("moe_layer_freq", word))
    assert found.megatron_lm == ()
    assert found.notes == (f"Megatron-LM: set --moe-layer-freq by hand to {word!r}",)


@pytest.mark.parametrize(("backend", "number"), [("flash", 1), ("auto", 5)])
def test_an_enum_is_spelled_as_its_member_because_a_word_would_be_ignored(backend: str, number: int) -> None:
    found = spelled(edit("attention_backend", backend))
    member = f"model.attention_backend={{_target_:megatron.core.transformer.enums.AttnBackend,_args_:[{number}]}}"
    assert found.bridge == (member,)
    assert found.megatron_lm == (f"--attention-backend {backend}",)


def test_an_enum_may_still_be_unset() -> None:
    assert spelled(edit("attention_backend", None)).bridge == ("model.attention_backend=null",)


def test_the_same_edits_are_python_for_a_recipe() -> None:
    found = spelled(
        edit("overlap_moe_expert_parallel_comm", True),
        edit("delay_wgrad_compute", True),
        edit("grad_reduce_in_fp32", False),
        edit("recompute_modules", ("moe_act",)),
        edit("attention_backend", "fused"),
    )
    assert found.python == (
        "(cfg.comm_overlap or cfg.model).overlap_moe_expert_parallel_comm = True",
        "(cfg.comm_overlap or cfg.model).delay_wgrad_compute = True",
        "(cfg.comm_overlap or cfg.ddp).delay_wgrad_compute = True",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
        "cfg.mixed_precision.grad_reduce_in_fp32 = False",
        "cfg.model.recompute_modules = ['moe_act']",
        "from megatron.core.transformer.enums import AttnBackend",
        "cfg.model.attention_backend = AttnBackend.fused",
    )


def test_variables_are_also_configuration_from_0_6_on_unless_the_run_exports_them() -> None:
    variable = edit("CUDA_DEVICE_MAX_CONNECTIONS", "32", "env")
    assert spelled(variable).bridge == ('++env_vars.CUDA_DEVICE_MAX_CONNECTIONS="32"',)
    assert spelled(variable, version="0.5.1").bridge == ()
    exported = RunConfig(environment={"CUDA_DEVICE_MAX_CONNECTIONS": ConfigValue("1", "environment")})
    assert spell([variable], exported, NEWEST_BRIDGE).bridge == ()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a\\", '"a\\\\"'),
        ('a\\"b', '"a\\\\\\"b"'),
        ("${oc.env:HOME}", '"\\${oc.env:HOME}"'),
        ("\\${x}", '"\\\\\\${x}"'),
        ("$(touch x)", '"$(touch x)"'),
        ("caf\u00e9", '"caf\u00e9"'),
    ],
)
def test_text_that_hydra_or_omegaconf_would_change_is_escaped(value: str, written: str) -> None:
    """Hydra 1.3.2 with OmegaConf 2.3 read each of these back as the value."""
    assert write_value(value) == written
