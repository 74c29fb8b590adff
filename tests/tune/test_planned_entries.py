"""Which entries of a plan a tuning tries: those that lines added to the command carry whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bridge.builders import config, edit
from tests.bridge.test_entries import GROUPED, ROPE, entry
from three_walls.advice.finding import REPLAYED, Gain, PlanStep
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM
from three_walls.lib.errors import InputError, UsageError
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.tuning.make_space import (
    core_name,
    find_clashes,
    find_unsettled,
    freeze_space,
    list_given,
    list_planned,
    logged_name,
    read_space,
)
from three_walls.tuning.trials import ExpectedGain

VARIABLE = edit("NCCL_P2P_DISABLE", None, "env")


def report(*plan: PlanStep, **settings: Any) -> Any:
    verdict = SimpleNamespace(step_ns=1000, replayed_step_ns=None)
    return SimpleNamespace(
        plan=plan, findings=tuple(step.finding for step in plan), config=config(**settings), verdict=verdict
    )


@pytest.mark.parametrize(
    ("framework", "words"),
    [(BRIDGE, ("model.moe_grouped_gemm=true",)), (MEGATRON_LM, ("--moe-grouped-gemm",))],
)
def test_an_entry_is_tried_with_the_words_of_the_framework(framework: str, words: tuple[str, ...]) -> None:
    (setting,), left_out = list_planned(report(entry(1, "experts", GROUPED)), framework)
    assert setting.values[0].words == words
    assert left_out == ()


def test_what_no_added_word_does_is_left_out_with_the_reason() -> None:
    plan = (entry(1, "unset", VARIABLE), entry(2, "nothing"), entry(3, "rope", ROPE))
    (setting,), left_out = list_planned(report(*plan), BRIDGE)
    assert setting.name == "rope"
    assert left_out == ("unset: Environment: unset NCCL_P2P_DISABLE", "nothing: it has no settings")


def test_a_flag_to_remove_leaves_out_the_entry_of_megatron_lm_alone() -> None:
    plan = entry(1, "rope", edit("moe_grouped_gemm", False))
    tried, left_out = list_planned(report(plan, moe_grouped_gemm=True), MEGATRON_LM)
    assert (tried, left_out) == ((), ("rope: Megatron-LM: remove --moe-grouped-gemm",))
    (setting,), left_out = list_planned(report(plan, moe_grouped_gemm=True), BRIDGE)
    assert setting.values[0].words == ("model.moe_grouped_gemm=false",)
    assert left_out == ()


def test_an_unknown_framework_takes_variables_alone() -> None:
    plan = (entry(1, "experts", GROUPED), entry(2, "connections", edit("CUDA_DEVICE_MAX_CONNECTIONS", "8", "env")))
    (setting,), left_out = list_planned(report(*plan), None)
    assert setting.values[0].environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert left_out == ("experts: the command is neither Megatron-Bridge's nor Megatron-LM's",)


def test_a_caller_takes_every_entry_by_the_names_of_megatron_core() -> None:
    grouped, unset = entry(1, "experts", edit("moe_grouped_gemm", False)), entry(2, "unset", VARIABLE)
    settings, left_out = list_planned(report(grouped, unset, moe_grouped_gemm=True), None, is_called=True)
    assert [setting.values[0].config for setting in settings] == [
        {"moe_grouped_gemm": False}, {"env.NCCL_P2P_DISABLE": None},
    ]  # fmt: skip
    assert settings[0].values[0].words == ("moe_grouped_gemm=false",)
    assert left_out == ()


@pytest.mark.parametrize("name", ["moe_grouped_gemm", "model.moe_grouped_gemm", "--moe-grouped-gemm"])
def test_an_entry_of_what_the_space_has_is_left_out(name: str) -> None:
    plan = report(entry(1, "experts", GROUPED), entry(2, "rope", ROPE))
    (setting,), left_out = list_planned(plan, BRIDGE, {core_name(name)})
    assert setting.name == "rope"
    assert left_out == ("experts: the space has moe_grouped_gemm",)


def test_a_gain_on_what_earlier_entries_leave_is_a_share_of_that() -> None:
    def gain(likely: int) -> Gain:
        return Gain(likely - 50, likely, likely + 50, REPLAYED, "")

    first = replace(entry(1, "experts", GROUPED), gain_ns=gain(500), step_after_likely_ns=500)
    later = replace(entry(2, "rope", ROPE), gain_ns=gain(300), step_after_likely_ns=200)
    settings, _ = list_planned(report(first, later), BRIDGE)
    (experts,), (rope,) = (setting.values for setting in settings)
    assert experts.gain == ExpectedGain(0.45, 0.5, 0.55)
    assert rope.gain == ExpectedGain(0.5, 0.6, 0.7)  # together 80%, as the plan says: 500 and 300 of 1,000
    # Where the replay of the entry alone is known, it is that.
    alone = report(first, later)
    alone.findings = (replace(later.finding, gain_ns=gain(400)),)
    (_, (rope,)) = (setting.values for setting in list_planned(alone, BRIDGE)[0])
    assert rope.gain == ExpectedGain(0.35, 0.4, 0.45)


def test_a_sweep_counts_the_values_of_the_base_where_they_are_known() -> None:
    given = {"a": [1, 2], "b": [1]}
    assert list_given(given, None, ["train.py"]).sweep == 4  # one of a's may be the base's
    assert list_given(given, None, ["train.py", "a=1"]).sweep == 4
    assert list_given(given, None, ["train.py", "a=0", "b=0"]).sweep == 6
    assert list_given({"--a": [1, 2]}, None, ["train.py", "--a", "0"]).sweep == 3
    assert list_given(given, None, None).sweep == 6


def test_a_value_that_the_bases_log_prints_is_no_edit_unless_the_command_states_another() -> None:
    given = {"micro_batch_size": [1, 2, 4]}

    def labels(command: list[str], logged: int) -> list[str]:
        listed = list_given(given, MEGATRON_LM, command, {"micro_batch_size": logged})
        (setting,) = listed.settings
        assert listed.sweep == len(setting.values) + 1
        return [each.label for each in setting.values]

    assert labels(["train.py"], 2) == ["micro_batch_size=1", "micro_batch_size=4"]
    assert labels(["train.py"], 8) == [f"micro_batch_size={size}" for size in (1, 2, 4)]
    assert labels(["train.py", "--micro-batch-size", "4"], 2) == ["micro_batch_size=1", "micro_batch_size=2"]


def test_the_value_that_the_command_gives_last_is_the_bases_in_any_spelling() -> None:
    def labels(given: dict[str, list[Any]], framework: str | None, *command: str) -> list[str]:
        return [each.label for setting in list_given(given, framework, command).settings for each in setting.values]

    sizes = {"micro_batch_size": [1, 2]}
    flags = ("--micro-batch-size", "1", "--micro-batch-size=2")
    assert labels(sizes, MEGATRON_LM, "pretrain_gpt.py", *flags) == ["micro_batch_size=1"]
    assert labels(sizes, MEGATRON_LM, "bash", "run.sh", *flags) == ["micro_batch_size=1"]
    assert labels(sizes, BRIDGE, "train.py", "++train.micro_batch_size=2") == ["micro_batch_size=1"]
    shell = "X=1 python train.py a='2' --b 1e-4 {overrides}"
    own = {"a": [1, 2], "--b": [0.0001, 0.1], "env.X": [1, 2]}
    assert labels(own, None, "bash", "-c", shell) == ["a=1", "--b=0.1", "env.X=1", "env.X=2"]
    assert labels(own, None, "env", "X=1", "python", "train.py", "a=2.0", "--b=0.1") == ["a=1", "--b=0.0001", "env.X=2"]


@pytest.mark.parametrize(
    ("stated", "path"),
    [
        ("model.overlap_moe_expert_parallel_comm=false", "model.overlap_moe_expert_parallel_comm"),
        ("comm_overlap.overlap_moe_expert_parallel_comm=false", "comm_overlap.overlap_moe_expert_parallel_comm"),
        ("train.micro_batch_size=1", "comm_overlap.overlap_moe_expert_parallel_comm"),
    ],
)
def test_a_setting_with_two_paths_is_set_by_the_one_that_the_command_has(stated: str, path: str) -> None:
    given = {"overlap_moe_expert_parallel_comm": [False, True]}
    (setting,) = list_given(given, BRIDGE, ["train.py", stated]).settings
    assert setting.values[-1].words == (f"{path}=true",)


def test_a_former_name_is_spelled_as_the_path_that_it_had() -> None:
    given = {"mixed_precision": ["bf16_mixed", {"mixed_precision": "fp8", "moe_router_padding_for_fp8": True}]}
    ((value,),) = (
        setting.values for setting in list_given(freeze_space(given), BRIDGE, ["mixed_precision=bf16_mixed"])[0]
    )
    assert value.words == ("mixed_precision=fp8", "model.moe_router_padding_for_fp8=true")
    assert core_name("moe_router_padding_for_fp8") == "moe_router_padding_for_quantization"


def test_a_value_may_have_with_it_what_goes_along(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "recompute_granularity:\n- full\n- {recompute_granularity: selective, recompute_num_layers: null, env.X: 1}\n"
    )
    given = read_space(tmp_path / "space.yaml")
    full = ["train.py", "model.recompute_granularity=full", "model.recompute_num_layers=1"]
    listed = list_given(given, BRIDGE, full)
    ((selective,),) = (setting.values for setting in listed.settings)
    assert selective.words == ("model.recompute_granularity=selective", "model.recompute_num_layers=null")
    assert selective.environment == {"X": "1"}
    assert selective.label == "env.X=1 recompute_granularity=selective recompute_num_layers=null"
    assert (listed.sweep, listed.unknown) == (2, ())
    # it is the base's where all of it is, and another where the layers are not
    half = ["env", "X=1", "train.py", "model.recompute_granularity=selective"]
    assert len(list_given(given, BRIDGE, [*half, "model.recompute_num_layers=4"]).settings[0].values) == 2
    ((other,),) = (setting.values for setting in list_given(given, BRIDGE, [*half, full[2][:-1] + "null"]).settings)
    assert other.label == "recompute_granularity=full"


def test_a_flag_that_goes_along_cannot_be_taken_away_either() -> None:
    given: dict[str, list[Any]] = {"a": [1, {"a": 2, "moe_permute_fusion": False}]}
    assert list_given(given, MEGATRON_LM, ["pretrain_gpt.py", "a=1"]).settings[0].values[0].words == ("a=2",)
    listed = list_given(given, MEGATRON_LM, ["pretrain_gpt.py", "a=1", "--moe-permute-fusion"])
    assert (listed.settings, len(listed.left_out)) == ((), 1)


def test_a_log_has_a_flag_by_the_name_of_its_setting_but_not_where_it_turns_it_off() -> None:
    assert logged_name("--micro-batch-size") == logged_name("train.micro_batch_size") == "micro_batch_size"
    assert logged_name("--disable-bias-linear") == "--disable-bias-linear"
    assert logged_name("--mine") == "--mine"


def test_a_value_is_spelled_for_the_configuration_that_the_base_has() -> None:
    def words(name: str, value: Any, **base: Any) -> tuple[str, ...]:
        (setting,) = list_given({name: [value]}, BRIDGE, ["train.py"], {}, config(**base)).settings
        return setting.values[0].words

    path = "overlap_moe_expert_parallel_comm"
    assert words(path, True, comm_overlap=None) == (f"model.{path}=true",)
    assert words(path, True, comm_overlap="CommOverlapConfig") == (f"comm_overlap.{path}=true",)
    # Megatron-Bridge takes the word alone for text, which equals no member: it would change nothing
    (backend,) = words("attention_backend", "flash")
    assert backend == "model.attention_backend={_target_:megatron.core.transformer.enums.AttnBackend,_args_:[1]}"


def test_a_list_is_a_word_each_of_a_flag_and_the_bases_where_the_command_has_its_words() -> None:
    def words(*command: str) -> list[tuple[str, ...]]:
        modules = {"--recompute-modules": [("moe_act", "layernorm"), ("core_attn",)]}
        (setting,) = list_given(modules, MEGATRON_LM, ["pretrain_gpt.py", *command]).settings
        return [value.words for value in setting.values]

    both = [("--recompute-modules", "moe_act", "layernorm"), ("--recompute-modules", "core_attn")]
    assert words() == words("--recompute-modules", "mlp") == both
    assert words("--recompute-modules", "core_attn", "--bf16") == both[:1]
    assert words("--recompute-modules", "moe_act", "layernorm", "{overrides}") == both[1:]


def test_a_variable_is_text_as_yaml_has_it() -> None:
    (setting,) = list_given({"env.X": [True, 1, 0.5, "on"]}, None, ["train.py"]).settings
    assert [value.environment["X"] for value in setting.values] == ["true", "1", "0.5", "on"]
    for value in (None, (1, 2)):
        with pytest.raises(UsageError, match=r"env\.X"):
            list_given({"env.X": [value]}, None, ["train.py"])


@pytest.mark.parametrize(
    "text",
    [
        *("a: [1]\na: [2]", "micro_batch_size: [1]\n--micro-batch-size: [2]", "a: {b: 1}", "a: []", "a: [.nan]"),
        *("a: [2026-01-01]", "a: [[[1]]]", "a b: [1]", "env.: [1]", "env.A B: [1]"),
        *("a: [{a: 1, b c: 2}]", "a: [{a: 1, b: {c: 2}}]", "a: [{a: 1, b: 2}]\nb: [1, 2]"),
    ],
)
def test_a_space_that_cannot_be_tried_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "space.yaml").write_text(f"{text}\n")
    with pytest.raises(InputError, match=r"space\.yaml"):
        read_space(tmp_path / "space.yaml")


def test_words_that_yaml_takes_for_true_or_false_have_to_be_quoted(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("prefetch: [off, near]\n")
    with pytest.raises(InputError, match='YAML reads off as a truth value: write true or false, or "off" for text'):
        read_space(tmp_path / "space.yaml")
    (tmp_path / "space.yaml").write_text('prefetch: ["off", near, false, offload]\n')
    assert read_space(tmp_path / "space.yaml") == {"prefetch": ["off", "near", False, "offload"]}


def test_a_value_that_is_listed_twice_is_tried_once(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("a: [2, 2, true, 1, null, [1, 2]]\nb: x\n")
    assert read_space(tmp_path / "space.yaml") == {"a": [2, True, 1, None, (1, 2)], "b": ["x"]}


def test_a_flag_that_the_command_lacks_is_off_and_one_that_would_have_to_go_is_left_out() -> None:
    fusions = {"moe_permute_fusion": [False, True], "gradient_accumulation_fusion": [True, False]}
    given = fusions | {"--mine": [False, True]}
    listed = list_given(given, MEGATRON_LM, ["pretrain_gpt.py"])
    words = [value.words for setting in listed.settings for value in setting.values]
    assert words == [("--moe-permute-fusion",), ("--no-gradient-accumulation-fusion",), ("--mine",)]
    assert (listed.sweep, listed.unknown, listed.left_out) == (8, (), ())
    taken = list_given(given, MEGATRON_LM, ["pretrain_gpt.py", "--moe-permute-fusion", "--mine"])
    assert [setting.name for setting in taken.settings] == ["gradient_accumulation_fusion"]
    assert [each.partition(":")[0] for each in taken.left_out] == ["moe_permute_fusion=false", "--mine=false"]
    assert list_given({"recompute_granularity": [None, "full"]}, BRIDGE, ["train.py"]).unknown


def test_first_values_that_are_not_all_the_bases_are_run_by_halves() -> None:
    every, left, right = ("a", "b", "c"), ("a", "b"), ("c",)
    assert find_unsettled(every, []) == every
    assert find_unsettled((), [(every, True)]) == ()
    assert find_unsettled(every, [(every, False)]) == left
    assert find_unsettled(right, [(every, False), (left, True)]) == right
    assert find_unsettled(every, [(every, False), (left, False), (("a",), False), (("b",), False)]) == right
    assert find_unsettled(right, [(every, False), (left, True), (right, False)]) == ()


def test_numbers_have_places_above_and_below_the_base() -> None:
    def order(values: list[Any]) -> tuple[int, ...]:
        return list_given({"a": values}, None, ["train.py", "a=2"]).settings[0].order

    assert order([1, 8, 2, 4]) == (-1, 2, 1)
    assert order([4, 1]) == (2, 1)  # where the base's is not among them it is taken to be below
    assert order(["full", "selective"]) == order([False, True]) == order([1, "many"]) == ()


def test_a_value_that_the_command_states_is_not_tried() -> None:
    (setting,) = list_given({"a": [1, 2]}, None, ["train.py", "a=1"]).settings
    assert [each.label for each in setting.values] == ["a=2"]


def test_values_that_the_launcher_refuses_beside_each_other_alone_are_known() -> None:
    base = {"moe_token_dispatcher_type": "alltoall", "recompute_granularity": "full", "cuda_graph_impl": "none"}
    given: dict[str, list[Any]] = {
        "moe_token_dispatcher_type": ["alltoall", "allgather"],
        "moe_shared_expert_overlap": [False, True],
        "recompute_granularity": ["full", None],
        "cuda_graph_impl": ["none", "transformer_engine"],
    }
    shared = {"moe_shared_expert_overlap": False, "moe_shared_expert_intermediate_size": 512}
    base_config = config(**base, **shared)
    settings = list_given(given, BRIDGE, ["train.py"], {**base, "moe_shared_expert_overlap": False}).settings
    overlap_beside_allgather, graphs_beside_full_recompute = {(0, 1), (1, 1)}, {(2, 0), (3, 1)}
    assert find_clashes(settings, base_config) == {
        frozenset(overlap_beside_allgather),
        frozenset(graphs_beside_full_recompute),
    }  # that graphs need another tracker of random numbers holds beside any value: a script may set it


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
def test_what_the_command_states_of_the_base_tells_what_is_refused_beside_it(dispatcher: str) -> None:
    command = ["python", "train.py", f"model.moe_token_dispatcher_type={dispatcher}"]
    given = {"moe_token_dispatcher_type": ["allgather", "alltoall"], "overlap_moe_expert_parallel_comm": [True]}
    settings = list_given(given, BRIDGE, command).settings
    overlap_beside_allgather = {(0, 0 if dispatcher == "allgather" else 1), (1, 1)}
    assert find_clashes(settings, merge_sources([read_command_line(command)])) == {frozenset(overlap_beside_allgather)}


@pytest.mark.parametrize(("heads", "is_refused"), [(20, True), (16, False)])
def test_a_value_that_the_sizes_of_the_model_exclude_is_known(heads: int, is_refused: bool) -> None:
    sizes = {"num_attention_heads": heads, "tensor_model_parallel_size": 1}
    base_config = config(multi_latent_attention=True, rope_type="yarn", apply_rope_fusion=False, **sizes)
    given: dict[str, list[Any]] = {"apply_rope_fusion": [False, True], "micro_batch_size": [1, 2]}
    settings = list_given(given, BRIDGE, ["train.py"], {"apply_rope_fusion": False, "micro_batch_size": 1}).settings
    assert find_clashes(settings, base_config) == ({frozenset({(0, 1)})} if is_refused else set())


def test_a_value_is_not_excluded_by_sizes_that_are_tried() -> None:
    sizes = {"num_attention_heads": 24, "tensor_model_parallel_size": 1}
    base_config = config(multi_latent_attention=True, rope_type="yarn", apply_rope_fusion=False, **sizes)
    given: dict[str, list[Any]] = {"apply_rope_fusion": [False, True], "tensor_model_parallel_size": [1, 3]}
    settings = list_given(given, BRIDGE, ["train.py"], {"apply_rope_fusion": False, "tensor_model_parallel_size": 1})
    assert frozenset({(0, 1)}) not in find_clashes(settings.settings, base_config)
