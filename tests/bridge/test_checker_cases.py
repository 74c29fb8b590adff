"""Our checker knows what Megatron-Bridge accepts, case by case, and finds more where a case states so."""

from __future__ import annotations

import lzma
from dataclasses import replace

import pytest
import yaml

from tests.bridge.cases import CASES, HERE, RELEASE, BridgeCase, recipe_config
from three_walls.bridge.check_overrides import check_overrides
from three_walls.bridge.constraints import judge_constraints
from three_walls.bridge.field_values import FieldValues
from three_walls.bridge.merged_config import config_of_paths, config_of_sections
from three_walls.tables.bridge_releases import FailureMode, bridge_schema, known_releases


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_checker_agrees_with_bridge_on_what_it_accepts(case: BridgeCase) -> None:
    check = check_overrides(case.overrides, case.base, RELEASE)
    assert check.is_accepted is case.passes, check.problems


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_override_that_bridge_accepts_but_that_does_not_do_what_is_meant_is_a_problem(case: BridgeCase) -> None:
    check = check_overrides(case.overrides, case.base, RELEASE)
    found = " | ".join(note.text for note in check.problems)
    assert check.is_valid is (case.passes and not case.stricter), found
    assert " ".join(case.checker_message.split()) in found


@pytest.mark.parametrize(
    ("override", "failure_mode"),
    [
        ("model.moe_tokn_dispatcher=flex", "refused"),
        ("++model.moe_tokn_dispatcher=flex", "ignored"),
        ("model.overlap_moe_expert_parallel_comm=true", "ignored"),
        ("model.moe_permute_fusion=banana", "not_validated"),
        ("model.moe_flex_dispatcher_backend=foo", "fails_at_build"),
        ("model.recompute_granularity=foo", "refused"),
        ("model.recompute_modules=[foo]", "unknown"),
        ("model.moe_router_dtype=fp23", "ignored"),
        ("model.moe_permute_fusion=true", None),
    ],
)
def test_each_problem_states_how_it_fails(override: str, failure_mode: str | None) -> None:
    base = recipe_config()
    with_overlap = replace(base, values={**base.values, "comm_overlap": "CommOverlapConfig"})
    assert check_overrides([override], with_overlap, RELEASE).overrides[0].failure_mode == failure_mode


def test_a_constraint_that_only_the_models_construction_checks_fails_at_build() -> None:
    (case,) = (case for case in CASES if case.name == "3c without te rng tracker")
    check = check_overrides(case.overrides, case.base, RELEASE)
    note = next(note for note in check.broken if note.name == "graphs_need_te_rng_tracker")
    assert check.is_accepted
    assert not check.is_valid
    assert note.text.startswith("Megatron-Bridge 0.3.1 accepts this, but the model cannot be built or trained: ")


def test_the_recipe_itself_breaks_nothing() -> None:
    assert judge_constraints(recipe_config(), RELEASE)[0] == ()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.moe_token_dispatcher_type=foo", "foo is not one of allgather, alltoall, flex"),
        ("model.moe_token_dispatcher_typ=flex", "did you mean moe_token_dispatcher_type?"),
        ("modle.moe_token_dispatcher_type=flex", "did you mean model?"),
        ("model.attention_backend=fused", "takes a member of AttnBackend, found fused"),
        ("model.attention_backend={_target_:megatron.core.transformer.enums.AttnBackend,_args_:[9]}", "(9,)"),
        ("model.recompute_modules=moe_act", "found moe_act"),
        ("model.recompute_modules=[gdn_norm_out]", "gdn_norm_out is not one of"),
        ("model.num_layers=two", "takes int, found two"),
        ("model.moe_permute_fusion=null", "cannot be null"),
        ("model.moe_permute_fusion=1", "takes bool, found 1"),
        ("+model.moe_permute_fusion=true", "the key exists"),
        ("~model.moe_permute_fusion", "cannot be removed"),
        ("model.recompute_modules=[moe_act", "not an override"),
        ("ddp.grad_reduce_in_fp32=false", "is reset by mixed_precision"),
        ("mixed_precision=bf16_mixd", "did you mean bf16_mixed?"),
    ],
)
def test_what_bridge_would_accept_or_silently_drop_is_a_problem(override: str, message: str) -> None:
    check = check_overrides([override], recipe_config(), RELEASE)
    assert not check.is_valid
    assert message in check.problems[0].text


@pytest.mark.parametrize(
    "override",
    [
        "model.attention_backend={_target_:megatron.core.transformer.enums.AttnBackend,_args_:[2]}",
        "mixed_precision=bf16-mixed",
        "dataset.num_workers=4",
        'model.pipeline_model_parallel_layout="Et*24|t*24L"',
    ],
)
def test_an_override_that_fits_is_valid(override: str) -> None:
    check = check_overrides([override], recipe_config(), RELEASE)
    assert check.is_valid, check.problems


def test_an_unknown_recipe_leaves_the_answer_unknown() -> None:
    base = recipe_config()
    values = {name: value for name, value in base.values.items() if name != "comm_overlap"}
    unknown = type(base)(values, {}, platform=base.platform)
    found = check_overrides(["comm_overlap.bucket_size=1000"], unknown, RELEASE).overrides[0]
    assert (found.truth.value, "is not known" in found.message) == ("unknown", True)


@pytest.mark.parametrize(
    ("gpu", "release", "accepts"),
    [
        ("NVIDIA B200", "0.3.1", True),
        ("NVIDIA B300", "0.3.1", True),
        ("NVIDIA B300 SXM6 AC", "0.3.1", False),
        ("NVIDIA B300 SXM6 AC", "0.4.2", True),
        ("NVIDIA GB200", "0.3.1", False),
        ("NVIDIA GB300", "0.4.2", False),
    ],
)
def test_deepep_runs_on_b200_and_b300_by_name_and_not_on_grace_blackwell(gpu: str, release: str, accepts: bool) -> None:
    model = {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "deepep"}
    machine = replace(config_of_sections({"model": model}), platform={"gpu_name": gpu, "gpu_sm": 100})
    broken = check_overrides(["model.moe_token_dispatcher_type=flex"], machine, release).broken
    assert any("needs_its_gpus" in note.name for note in broken) is not accepts


@pytest.mark.parametrize(("heads", "accepts"), [(24, False), (64, True)])
def test_heads_that_query_groups_do_not_divide_fail_when_the_model_is_built(heads: int, accepts: bool) -> None:
    lines = [f"model.num_attention_heads={heads}", "model.num_query_groups=32"]
    check = check_overrides(lines, recipe_config(), RELEASE)
    assert check.is_accepted
    assert check.is_valid is accepts
    assert [note.name for note in check.broken] == ([] if accepts else ["heads_divide_over_query_groups"])


@pytest.mark.parametrize("release", known_releases())
def test_null_counts_as_off_where_constraints_judge_the_switch(release: str) -> None:
    schema = bridge_schema(release)
    values = FieldValues(schema, {})
    for path, mode in (("mixed_precision.bf16", FailureMode.NOT_VALIDATED), ("model.num_layers", FailureMode.REFUSED)):
        field = schema.find(path)
        assert field is not None
        assert values.find_failure_mode(path, field, None) is mode


@pytest.mark.parametrize("text", ["''", "", "many"])
def test_a_text_for_the_layers_is_refused_by_a_recipe_and_ends_a_saved_run_later(text: str) -> None:
    packed = (HERE.parent / "bridge_runs" / "0.3.1" / "run_config.yaml.xz").read_bytes()
    saved = config_of_sections(yaml.safe_load(lzma.decompress(packed)))  # names the function that initializes
    for base, is_accepted in ((recipe_config(), False), (saved, True)):
        check = check_overrides([f"model.num_layers={text}"], base, RELEASE)
        assert (check.is_accepted, check.is_valid) == (is_accepted, False), check.problems


@pytest.mark.parametrize(
    ("sm", "engine", "recipe", "problem"),
    [
        (80, 2014, "bf16_with_fp8_current_scaling_mixed", "fp8_needs_its_gpus"),
        (89, 2014, "bf16_with_fp8_current_scaling_mixed", None),
        (89, 2014, "bf16_with_fp8_subchannel_scaling_mixed", "blockwise_fp8_needs_its_gpus"),
        (90, 2008, "bf16_with_fp8_subchannel_scaling_mixed", None),
        (90, 2014, "bf16_with_mxfp8_mixed", "mxfp8_needs_blackwell"),
        (90, 2014, "bf16_with_nvfp4_mixed", "nvfp4_needs_blackwell"),
        (100, 2008, "bf16_with_fp8_subchannel_scaling_mixed", "blockwise_fp8_needs_its_gpus"),
        (100, 2009, "bf16_with_fp8_subchannel_scaling_mixed", None),
        (103, 2014, "bf16_with_mxfp8_mixed", None),
        (103, 2014, "bf16_with_nvfp4_mixed", None),
        (120, 2014, "bf16_with_fp8_delayed_scaling_mixed", None),
        (120, 2014, "bf16_with_mxfp8_mixed", "mxfp8_needs_all_gemm_layouts"),
    ],
)
def test_a_recipe_that_transformer_engine_has_not_for_the_gpu_fails_at_the_first_step(
    sm: int, engine: int, recipe: str, problem: str | None
) -> None:
    base = recipe_config()
    platform = {"gpu_name": "NVIDIA B200", "gpu_sm": sm, "transformer_engine": engine}  # a name that DeepEP takes
    machine = replace(base, platform={**base.platform, **platform})
    check = check_overrides([f"mixed_precision={recipe}"], machine, RELEASE)
    assert [note.name for note in check.broken if "fp" in note.name] == ([problem] if problem else [])
    assert check.is_accepted, "Megatron-Bridge accepts it: the step is what fails"


@pytest.mark.parametrize("release", ["0.5.1", "0.6.2"])
def test_packed_sequences_take_a_micro_batch_of_one(release: str) -> None:
    specs = {"packed_sequence_size": 4096}
    older = {"_target_": "megatron.bridge.data.builders.hf_dataset.HFDatasetConfig", "packed_sequence_specs": specs}
    newer = {"_target_": "megatron.bridge.data.builders.gpt_sft.GPTSFTDatasetConfig", "offline_packing_specs": specs}
    newer["enable_offline_packing"] = True
    base = config_of_sections({"dataset": newer if release == "0.6.2" else older, "train": {"micro_batch_size": 1}})

    def broken(*overrides: str) -> set[str]:
        return {note.name for note in check_overrides(overrides, base, release).broken if "pack" in note.name}

    assert broken() == set()
    (name,) = broken("train.micro_batch_size=2")
    assert name.startswith("packed_sequences_come_one_by_one")
    if release == "0.6.2":
        assert broken("dataset.enable_offline_packing=false") == {"packing_is_on_where_it_has_a_size"}
        assert broken("dataset.offline_packing_specs=null") == {"packing_has_its_size"}


@pytest.mark.parametrize("release", ["0.5.1", "0.6.2"])
def test_fine_tuning_has_one_sequence_length_and_with_split_sequences_counts_tokens(release: str) -> None:
    dataset = "gpt_sft.GPTSFTDatasetConfig" if release == "0.6.2" else "hf_dataset.HFDatasetConfig"
    sections = {
        "dataset": {"_target_": f"megatron.bridge.data.builders.{dataset}", "seq_length": 2048},
        "model": {"seq_length": 2048, "context_parallel_size": 1, "calculate_per_token_loss": False},
        "ddp": {"average_in_collective": True},
    }

    def broken(*overrides: str) -> set[str]:
        return {note.name for note in check_overrides(overrides, config_of_sections(sections), release).broken}

    needed = {"fine_tuning_with_split_sequences_counts_tokens", "fine_tuning_with_split_sequences_does_not_average"}
    assert not needed & broken()
    assert needed <= broken("model.context_parallel_size=2")
    both = ("model.calculate_per_token_loss=true", "ddp.average_in_collective=false")
    assert not needed & broken("model.context_parallel_size=2", *both)
    assert "model_and_dataset_have_one_sequence_length" in broken("dataset.seq_length=4096")


@pytest.mark.parametrize(
    ("before", "in_section", "refused"), [(True, None, True), (False, True, True), (False, None, False)]
)
def test_delayed_weight_gradients_meet_the_reduction_as_it_is_before_the_copy_of_comm_overlap(
    before: bool, in_section: bool | None, refused: bool
) -> None:
    recipe = recipe_config()
    section = dict.fromkeys(bridge_schema(RELEASE).sections["comm_overlap"].fields)
    section |= {"_target_": "CommOverlapConfig", "overlap_grad_reduce": in_section, "delay_wgrad_compute": True}
    ddp = {"overlap_grad_reduce": before, "use_distributed_optimizer": True}
    layout = {f"{kind}_parallel_size": 1 for kind in ("tensor_model", "pipeline_model", "context")}
    layout["virtual_pipeline_model_parallel_size"] = None
    base = config_of_sections({"comm_overlap": section, "ddp": ddp, "model": layout})
    # One copy of the model: the copy turns the reduction off.
    machine = replace(base, platform={**recipe.platform, "world_size": 1, "transformer_engine": 2005})
    broken = {note.name for note in check_overrides([], machine, RELEASE).broken}
    assert ("delayed_wgrad_with_grad_reduce_needs_te_2_7" in broken) is refused


@pytest.mark.parametrize(("modules", "accepts"), [("full", True), ("attn", False)])
def test_local_graphs_are_for_inference_where_no_module_is_named(modules: str, accepts: bool) -> None:
    model = {"cuda_graph_impl": "local", "cuda_graph_scope": modules, "inference_cuda_graph_scope": "block"}
    base = config_of_sections({"model": {**model, "cuda_graph_modules": modules}})
    broken = [note.name for note in check_overrides([], base, "0.6.2").broken]
    assert ("local_graphs_are_full_iteration_only" in broken) is not accepts


PACKED = {
    "dataset": {
        "_target_": "megatron.bridge.data.builders.gpt_sft.GPTSFTDatasetConfig",
        "seq_length": 2048,
        "enable_offline_packing": True,
        "dataset_kwargs": {"pad_to_max_length": True},
        "offline_packing_specs": {
            "_target_": "megatron.bridge.data.packing.config.PackedSequenceSpecs",
            "packed_sequence_size": 2048,
            "pad_cu_seqlens": False,
        },
    },
    "model": {"cuda_graph_impl": "none", "cuda_graph_scope": None, "cuda_graph_modules": [], "num_layers": 8},
    "train": {"micro_batch_size": 1},
}
GRAPHS = "model.cuda_graph_impl=transformer_engine"
SPECS, LENGTH = "dataset.offline_packing_specs", "dataset.dataset_kwargs.pad_to_max_length"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([], None),
        ([GRAPHS], "graphs_of_packed_attention_need_padded_bounds"),
        ([GRAPHS, "model.cuda_graph_modules=[attn]"], "graphs_of_packed_attention_need_padded_bounds"),
        (["model.cuda_graph_impl=full_iteration"], "graphs_of_packed_attention_need_padded_bounds"),
        ([GRAPHS, "model.cuda_graph_modules=[moe_router]"], None),
        ([GRAPHS, f"{SPECS}.pad_cu_seqlens=true"], None),
        ([GRAPHS, f"{SPECS}={{pad_cu_seqlens:true}}"], None),
        ([GRAPHS, f"{SPECS}=null", "dataset.enable_offline_packing=false"], None),
        (
            [GRAPHS, "model.cuda_graph_modules=[moe_router]", f"{LENGTH}=false"],
            "graphs_of_packed_sequences_need_padded_sequences",
        ),
        (
            [f"{SPECS}.pad_cu_seqlens=true", "dataset.dataset_kwargs=null"],
            "padded_bounds_of_packed_sequences_need_padded_sequences",
        ),
        ([f"{LENGTH}=false"], None),
        ([f"{SPECS}.packed_sequence_size=0"], "packing_has_a_size_above_zero"),
    ],
)
def test_graphs_of_packed_sequences_need_padding(overrides: list[str], problem: str | None) -> None:
    check = check_overrides(overrides, config_of_sections(PACKED), "0.6.2")
    assert [note.name for note in check.broken if "pack" in note.name] == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("override", "is_accepted"),
    [
        (f"{SPECS}.pad_cu_seqlens=true", True),
        (f"{SPECS}.pad_cu_seqlen=true", False),
        (f"++{SPECS}.pad_cu_seqlen=true", True),
        (f"{LENGTH}=false", True),
        ("dataset.dataset_kwargs.answer_only_loss=true", False),
        ("++dataset.dataset_kwargs.answer_only_loss=true", True),
    ],
)
def test_a_plain_override_finds_the_fields_that_an_object_or_a_mapping_has(override: str, is_accepted: bool) -> None:
    assert check_overrides([override], config_of_sections(PACKED), "0.6.2").is_accepted is is_accepted


def test_before_0_6_padded_bounds_without_padded_sequences_fail_when_the_dataset_is_built() -> None:
    specs = {"packed_sequence_size": 4096, "pad_cu_seqlens": True}
    dataset = {
        "_target_": "megatron.bridge.data.builders.hf_dataset.HFDatasetConfig",
        "packed_sequence_specs": specs,
        "dataset_kwargs": {"pad_to_max_length": True},
    }
    base = config_of_sections({"dataset": dataset})

    def broken(*overrides: str) -> list[str]:
        check = check_overrides(overrides, base, RELEASE)
        assert check.is_accepted
        return [note.name for note in check.broken if "padded_bounds" in note.name]

    assert broken() == []
    assert broken(f"{LENGTH}=false") == ["padded_bounds_of_packed_sequences_need_padded_sequences_before_0_6"]


@pytest.mark.parametrize("path", ["dataset.sequence_length", "dataset.mock"])
def test_a_dataset_for_fine_tuning_lacks_what_pre_training_does_not_save(path: str) -> None:
    fields = {f"model.{name}": None for name in bridge_schema("0.6.2").sections["model"].fields}
    for kind, is_found in (("GPTSFTDatasetConfig", False), ("GPTDatasetConfig", True)):
        known = {**fields, "model.cuda_graph_modules": (), "dataset": kind, "dataset.seq_length": 2048}
        override = check_overrides([f"{path}=2048"], config_of_paths(known), "0.6.2").overrides[0]
        assert (f"has no {path}" in override.message) is not is_found, override


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["dataset.data_path=[]"], {"dataset_paths_are_given"}),
        (["dataset.data_path=''"], {"dataset_paths_are_given"}),
        (["dataset.data_path=[/data/text]"], set()),
        (["dataset.data_path=[]", "dataset.blend=[[/data/text],null]"], set()),
        (["dataset.data_path=/data/text", "dataset.split=null"], {"dataset_blend_is_split"}),
        (["dataset.split=null"], set()),
    ],
)
def test_paths_of_data_are_a_blend_that_is_not_empty(overrides: list[str], refused: set[str]) -> None:
    dataset = {"_target_": "megatron.bridge.training.config.GPTDatasetConfig", "data_path": None, "blend": None}
    base = config_of_sections({"dataset": {**dataset, "blend_per_split": None, "split": "99,1,0", "seq_length": 4096}})
    broken = {note.name for note in check_overrides(overrides, base, "0.6.2").broken}
    assert {name for name in broken if name.startswith(("dataset_paths", "dataset_blend"))} == refused


def test_a_tracked_experiment_needs_a_name() -> None:
    for kind, name in (("mlflow_experiment", "mlflow_run_name"), ("comet_project", "comet_experiment_name")):
        base = config_of_sections({"logger": {kind: None, name: None}})
        needed = check_overrides([f"logger.{kind}=four"], base, "0.4.2")
        assert [note.text.split()[1] for note in needed.broken] == [f"logger.{name}"]
        assert not check_overrides([f"logger.{kind}=four", f"logger.{name}=one"], base, "0.4.2").broken


FLASH = "{_target_:megatron.core.transformer.enums.AttnBackend,_args_:[1]}"


@pytest.mark.parametrize(
    ("base", "overrides", "problem"),
    [
        ("auto", ["model.attention_backend=flash"], "batch_invariance_needs_flash_attention"),
        ("auto", [f"++model.attention_backend={FLASH}"], "deterministic_mode_excludes_flash_attention"),
        ("flash", [], "deterministic_mode_excludes_flash_attention"),
        ("auto", [], "batch_invariance_needs_flash_attention"),
    ],
)
def test_bridge_compares_an_attention_backend_with_members_that_a_text_is_not(
    base: str, overrides: list[str], problem: str
) -> None:
    model = {"attention_backend": base, "deterministic_mode": True, "batch_invariant_mode": True}
    check = check_overrides(overrides, config_of_sections({"model": model}), RELEASE)
    assert [note.name for note in check.broken if "flash" in note.name] == [problem]


@pytest.mark.parametrize(
    ("override", "is_accepted", "is_valid"),
    [
        ("peft.dim=16", False, False),
        ("peft=null", False, False),
        ("~peft", False, False),
        ("++peft.dim=16", True, True),
        ("+peft.dim=16", True, True),
        ("++peft=null", True, False),
    ],
)
def test_overrides_can_only_append_to_an_adapter(override: str, is_accepted: bool, is_valid: bool) -> None:
    base = config_of_sections({"peft": {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": 32}})
    check = check_overrides([override], base, "0.6.2")
    assert (check.is_accepted, not check.problems) == (is_accepted, is_valid), check.problems


def test_pre_training_leaves_no_constraint_on_packing_open() -> None:
    sections = {"dataset": {"_target_": "megatron.bridge.training.config.GPTDatasetConfig"}}
    for release in ("0.5.1", "0.6.2"):
        check = check_overrides(["train.micro_batch_size=2"], config_of_sections(sections), release)
        assert not [name for name in check.unknown if "pack" in name]


@pytest.mark.parametrize(
    ("overrides", "gathers"),
    [
        (["mixed_precision.fp8_param=true"], False),  # the whole section is set again, that with _gather last
        (["mixed_precision=bf16_mixed", "++mixed_precision.fp8_param=true"], True),
        (["~mixed_precision", "++mixed_precision.fp8_param=true"], True),
        (
            ["mixed_precision=null", "++mixed_precision.fp8_param_gather=true", "++mixed_precision.fp8_param=false"],
            False,
        ),
        (
            ["mixed_precision=null", "++mixed_precision.fp8_param=false", "++mixed_precision.fp8_param_gather=true"],
            True,
        ),
    ],
)
def test_of_two_names_of_a_precision_setting_the_one_set_last_counts(overrides: list[str], gathers: bool) -> None:
    section = dict.fromkeys(bridge_schema(RELEASE).sections["mixed_precision"].fields)
    section |= {"_target_": "MixedPrecisionConfig", "fp8_param": False, "fp8_param_gather": False}
    base = config_of_sections({"mixed_precision": section, "model": {"fp8": None, "fp8_param": False}})
    broken = {note.name for note in check_overrides(overrides, base, RELEASE).broken}
    assert ("fp8_parameters_need_fp8" in broken) is gathers


@pytest.mark.parametrize(
    ("overrides", "is_accepted"),
    [
        (["model.no_rope_freq=''"], True),
        (["model.no_rope_freq=often"], False),
        (['model.moe_deepep_num_sms="null"'], False),
        (['model.moe_deepep_num_sms="null"', "model.moe_hybridep_num_sms=null"], True),
        (["model.moe_deepep_num_sms=[1,2]", "model.moe_hybridep_num_sms=null"], False),
        (["model.moe_deepep_num_sms=[1,2]", "model.moe_hybridep_num_sms=[1,2]"], False),
        (["model.moe_deepep_num_sms=[1,2]", "model.moe_flex_dispatcher_num_sms=24"], True),
        (["model.hierarchical_context_parallel_sizes=''"], True),
        (["model.hierarchical_context_parallel_sizes=many"], False),
        (["model.moe_router_enable_expert_bias={a:1}"], False),
        (["model.moe_router_enable_expert_bias={a:1}", "model.moe_router_score_function=sigmoid"], True),
        (['train.micro_batch_size="null"'], False),
        (['train.micro_batch_size="null"', "validation.eval_micro_batch_size=2"], True),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_where_bridge_looks_at_it(overrides: list[str], is_accepted: bool) -> None:
    counts = {"moe_deepep_num_sms": None, "moe_hybridep_num_sms": 16, "moe_flex_dispatcher_num_sms": None}
    model: dict[str, object] = {"num_layers": 24, "no_rope_freq": None, **counts}
    model |= {"hierarchical_context_parallel_sizes": None, "moe_router_enable_expert_bias": False}
    model |= {"moe_router_score_function": "softmax"}
    model |= {f"{kind}_parallel_size": 1 for kind in ("tensor_model", "pipeline_model", "context")}
    batches = {"eval_global_batch_size": 8, "eval_micro_batch_size": None}
    known = {"model": model, "train": {"global_batch_size": 8, "micro_batch_size": 1}, "validation": batches}
    base = replace(config_of_sections(known), platform={"world_size": 2})
    check = check_overrides(overrides, base, "0.6.2")
    assert (check.is_accepted, check.is_valid) == (is_accepted, False), check.problems


@pytest.mark.parametrize(
    ("overrides", "gpu", "fits"),
    [
        ([], "NVIDIA H100 80GB HBM3", True),
        (["train.micro_batch_size=8"], "NVIDIA H100 80GB HBM3", False),
        (["train.micro_batch_size=8"], "NVIDIA GB200", True),
        (["train.micro_batch_size=8", "model.expert_model_parallel_size=8"], "NVIDIA H100 80GB HBM3", True),
        (["train.micro_batch_size=8", "model.context_parallel_size=4"], "NVIDIA H100 80GB HBM3", True),
    ],
)
def test_hybridep_between_hosts_queues_so_many_tokens(overrides: list[str], gpu: str, fits: bool) -> None:
    model: dict[str, object] = {f"{kind}_parallel_size": 1 for kind in ("tensor_model", "context")}
    model |= {"seq_length": 8192, "expert_model_parallel_size": 16}
    model |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    base = config_of_sections({"model": model, "train": {"micro_batch_size": 2}})
    check = check_overrides(overrides, replace(base, platform={"gpu_name": gpu}), "0.6.2")
    assert ("hybridep_tokens_fit_the_queue" not in {note.name for note in check.broken}) is fits


@pytest.mark.parametrize(("release", "refused"), [("0.4.2", False), ("0.5.1", True), ("0.6.2", True)])
def test_megatron_fsdp_turns_the_distributed_optimizer_on_from_0_5(release: str, refused: bool) -> None:
    sections = {
        "ddp": {"use_distributed_optimizer": False, "use_megatron_fsdp": True},
        "optimizer": {"use_distributed_optimizer": False},
        "dist": {"use_megatron_fsdp": True, "use_gloo_process_groups": False},
        "checkpoint": {"ckpt_format": "torch"},
    }
    broken = {note.name for note in check_overrides([], config_of_sections(sections), release).broken}
    assert any(name.startswith("legacy_checkpoints_need_gloo") for name in broken) is refused


@pytest.mark.parametrize(
    ("release", "path", "is_known", "answer"),
    [
        ("0.6.2", "/data/here", True, "holds"),
        ("0.6.2", "/data/gone", True, "broken"),
        ("0.6.2", "/data/gone", False, "unknown"),
        ("0.3.1", "/data/gone", True, "holds"),
    ],
)
def test_a_pretrained_checkpoint_exists_where_the_run_starts(
    release: str, path: str, is_known: bool, answer: str
) -> None:
    base = config_of_sections({"checkpoint": {"pretrained_checkpoint": None}})
    machine = replace(base, platform={"paths": ("/data/here",)} if is_known else {})
    check = check_overrides([f"checkpoint.pretrained_checkpoint={path}"], machine, release)
    found = {"broken": [note.name for note in check.broken], "unknown": check.unknown}
    named = [state for state, names in found.items() if "pretrained_checkpoint_exists" in names]
    assert named == ([answer] if answer != "holds" else [])


def test_what_is_no_number_is_compared_all_the_same() -> None:
    base = config_of_sections({"model": {"moe_expert_capacity_factor": None, "moe_router_load_balancing_type": "none"}})
    for value, is_accepted in (("nan", True), ("much", False)):
        check = check_overrides([f"model.moe_expert_capacity_factor={value}"], base, "0.4.2")
        assert check.is_accepted is is_accepted, check.problems


def test_no_heads_share_the_hidden_size() -> None:
    model = {"hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": None}
    for channels, is_accepted in ((None, False), (128, True)):
        base = config_of_sections({"model": {**model, "kv_channels": channels}})
        check = check_overrides(["model.num_attention_heads=0"], base, "0.4.2")
        assert check.is_accepted is is_accepted, check.problems


OVERLAP = "megatron.bridge.training.comm_overlap"
REMADE = f"++comm_overlap._target_={OVERLAP}.CommOverlapConfig"
PRESET = "++comm_overlap.tp_comm_overlap_cfg._target_"


@pytest.mark.parametrize(
    ("overrides", "is_accepted"),
    [
        ([REMADE], False),  # the fields of the preset stay a mapping
        ([REMADE, f"{PRESET}={OVERLAP}.TransformerLayerTPOverlapCfg"], True),
        ([f"{PRESET}={OVERLAP}.TransformerLayerTPOverlapCfg", REMADE], True),
        ([REMADE, f"{PRESET}={OVERLAP}.NoSuchCfg"], True),  # nothing is made, and the section stays what it was
    ],
)
def test_an_object_in_a_section_that_is_made_anew_needs_its_class(overrides: list[str], is_accepted: bool) -> None:
    section = dict.fromkeys(bridge_schema(RELEASE).sections["comm_overlap"].fields)
    preset = {"_target_": f"{OVERLAP}.TransformerLayerTPOverlapCfg", "qkv_dgrad": {"_target_": "Any"}}
    section |= {"_target_": "CommOverlapConfig", "tp_comm_overlap": True, "tp_comm_overlap_cfg": preset}
    model = {f"{kind}_parallel_size": 1 for kind in ("pipeline_model", "context")}
    model |= {"tensor_model_parallel_size": 4, "sequence_parallel": True}
    base = config_of_sections({"comm_overlap": section, "model": model})
    check = check_overrides(overrides, base, RELEASE)
    assert ("overlap_preset_is_an_object" not in {note.name for note in check.broken}) is is_accepted


@pytest.mark.parametrize(("words", "is_accepted"), [("''", True), ("attention", False)])
def test_an_empty_text_names_no_graphed_module(words: str, is_accepted: bool) -> None:
    graphs = {"cuda_graph_impl": "full_iteration", "cuda_graph_scope": None, "cuda_graph_modules": []}
    check = check_overrides([f"model.cuda_graph_modules={words}"], config_of_sections({"model": graphs}), "0.6.2")
    assert check.is_accepted is is_accepted, check.problems


SFT = {"dataset_root": None, "do_validation": True, "do_test": False, "hf_rewrite": False, "hf_output_root": None}
SFT |= {"hf_validation_dataset": None, "hf_test_dataset": None, "hf_validation_proportion": None}
SQUAD = {"dataset_name": "squad", "path_or_dataset": None, "subset": None, "schema_adapter": None}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([], None),
        (["dataset.do_test=true"], "named_datasets_have_what_tests"),
        (["dataset.hf_dataset.dataset_name=gsm8k"], "named_datasets_have_what_validates"),
        (["dataset.hf_dataset.dataset_name=gsm8k", "dataset.hf_validation_proportion=0.1"], None),
        (["dataset.hf_dataset.dataset_name=gsm8k", "dataset.do_validation=false", "dataset.do_test=true"], None),
        (["dataset.hf_dataset.subset=main"], "hugging_face_sources_are_named_or_located"),
        (["dataset.hf_dataset.dataset_name=null"], "hugging_face_sources_are_named_or_located"),
        (["dataset.hf_dataset.dataset_name=null", "dataset.hf_dataset.path_or_dataset=/data/text"], None),
        (["dataset.hf_dataset=null"], "fine_tuning_has_one_source"),
        (["dataset.dataset_root=/data/text"], "fine_tuning_has_one_source"),
        (["dataset.hf_dataset=null", "dataset.dataset_root=/data/text"], None),
        (
            ["dataset.hf_dataset=null", "dataset.dataset_root=/data/text", "dataset.hf_rewrite=true"],
            "local_sources_exclude_hugging_face_settings",
        ),
        (["dataset.hf_validation_proportion=1"], "a_proportion_validates_alone"),
        (
            ["dataset.hf_validation_proportion=0.1", "dataset.do_validation=false"],
            "validation_is_on_where_it_has_settings",
        ),
        (["++dataset.hf_test_dataset={dataset_name:gsm8k}"], "test_is_on_where_it_has_a_dataset"),
    ],
)
def test_fine_tuning_has_one_source_with_what_its_settings_ask_of_it(overrides: list[str], problem: str | None) -> None:
    target = "megatron.bridge.data.builders.gpt_sft.GPTSFTDatasetConfig"
    source = {"_target_": "megatron.bridge.data.sources.hf.HFDatasetSourceConfig", **SQUAD}
    base = config_of_sections({"dataset": {"_target_": target, **SFT, "hf_dataset": source}})
    names = ("named_", "hugging_", "fine_tuning_has", "local_", "a_proportion", "validation_is", "test_is")
    broken = [note.name for note in check_overrides(overrides, base, "0.6.2").broken]
    assert [name for name in broken if name.startswith(names)] == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("release", "overrides", "problem"),
    [
        ("0.6.2", ["checkpoint.also_save_hf_checkpoint=true"], "saving_for_hf_needs_a_source"),
        ("0.6.2", ["checkpoint.also_save_hf_checkpoint=true", "checkpoint.hf_source_path=/data/model"], None),
        (
            "0.6.2",
            ["model.restore_modelopt_state=true", "checkpoint.non_persistent_ckpt_type=global"],
            "quantized_models_are_restored_from_persistent_checkpoints",
        ),
        ("0.6.2", ["model.restore_modelopt_state=true"], None),
        ("0.5.1", ["model.restore_modelopt_state=true", "checkpoint.non_persistent_ckpt_type=global"], None),
    ],
)
def test_checkpoints_from_elsewhere_need_their_source(release: str, overrides: list[str], problem: str | None) -> None:
    checkpoint = {"ckpt_format": "torch_dist", "non_persistent_ckpt_type": None, "hf_source_path": None}
    model = {"restore_modelopt_state": False, "gradient_accumulation_fusion": False, "hf_model_id": None}
    sections = {"checkpoint": {**checkpoint, "also_save_hf_checkpoint": False}, "model": model}
    base = config_of_sections({**sections, "tokenizer": {"tokenizer_model": None}})
    broken = [note.name for note in check_overrides(overrides, base, release).broken]
    assert [name for name in broken if name.startswith(("saving", "quantized"))] == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("overrides", "is_accepted"),
    [
        (["env_vars.NCCL_ALGO=Ring"], False),
        (["++env_vars.NCCL_ALGO=Ring"], True),
        (["++env_vars.NCCL_ALGO=Ring", "env_vars.NCCL_ALGO=Tree"], True),
        (["++env_vars.NCCL_ALGO=Ring", "env_vars.NCCL_PROTO=LL"], False),
        (["++env_vars.NCCL_ALGO=Ring", "+env_vars.NCCL_ALGO=Tree"], False),
        (["+env_vars.NCCL_ALGO=Ring", "+env_vars.NCCL_PROTO=LL"], True),
        (["++env_vars.NCCL_ALGO=Ring", "~env_vars"], True),
        (["~env_vars"], False),
    ],
)
def test_overrides_find_what_others_appended_to_a_section_that_the_release_lacks(
    overrides: list[str], is_accepted: bool
) -> None:
    check = check_overrides(overrides, recipe_config(), "0.3.1")
    assert (check.is_accepted, check.is_valid) == (is_accepted, False), check.problems


@pytest.mark.parametrize("value", ["[1,2]", "abc", "'%999999999999d'"])
def test_what_is_no_number_is_never_repeated(value: str) -> None:
    base = recipe_config()
    many = [
        "train.train_iters=1000000000000",
        "train.global_batch_size=1000000000000",
        "model.seq_length=1000000000000",
    ]
    for path in ("scheduler.lr_warmup_fraction", "train.micro_batch_size", "model.tensor_model_parallel_size"):
        assert check_overrides([*many, f"{path}={value}"], base, RELEASE).is_accepted is False


@pytest.mark.parametrize(
    ("overrides", "is_accepted"),
    [
        (["mixed_precision.fp4_param_gather=''"], True),
        (["mixed_precision.fp4_param_gather=on"], False),
        (["ddp.param_name_patterns_for_fp32_local_accumulation=''"], True),
        (["ddp.param_name_patterns_for_fp32_local_accumulation=bias"], True),
        (["model.moe_router_group_topk=''"], True),
        (["model.moe_router_group_topk=few"], False),
        (["dataset.blend=''"], False),
        (["dataset.blend=ab"], True),
        (["tokenizer.hf_tokenizer_kwargs={use_fast:true}"], False),
        (["++tokenizer.hf_tokenizer_kwargs={use_fast:true}"], True),
        (["tokenizer.hf_tokenizer_kwargs={}"], True),
    ],
)
def test_the_recipe_takes_the_odd_values_that_bridge_takes(overrides: list[str], is_accepted: bool) -> None:
    packed = (HERE.parent / "bridge_runs" / "0.6.2" / "run_config.yaml.xz").read_bytes()
    check = check_overrides(overrides, config_of_sections(yaml.safe_load(lzma.decompress(packed))), "0.6.2")
    assert check.is_accepted is is_accepted, check.problems
