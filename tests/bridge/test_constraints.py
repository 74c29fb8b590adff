"""What a release requires of a whole configuration is read strictly and judged with three answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge.builders import config, edit
from three_walls.bridge.check_overrides import find_problems
from three_walls.bridge.constraints import constraint_table, judge_constraints, judge_values
from three_walls.bridge.merged_config import MergedConfig
from three_walls.lib.errors import RuleBaseError
from three_walls.lib.plain_data import ConfigData
from three_walls.tables.bridge_releases import known_releases

TABLE = """\
platform: [gpu_name]
constraints:
  heads_divide:
    if: tensor_model_parallel_size > 1 and env.NCCL_ALGO != 'Ring'
    needs: num_attention_heads % tensor_model_parallel_size == 0
    message: num_attention_heads must be a multiple of tensor parallel size
    source: bridge:src/megatron/bridge/training/config.py:1
"""


def load(folder: Path, text: str) -> str:
    """The errors in the table; empty if there are none."""
    (folder / "constraints.yaml").write_text(text)
    try:
        constraint_table(folder / "constraints.yaml")
    except RuleBaseError as error:
        return str(error).replace(str(folder), "")
    return ""


def test_a_table_without_a_mistake_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, TABLE) == ""


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("num_attention_heads %", "num_attention_head %", ":5:12:", "did you mean num_attention_heads?"),
        ("num_attention_heads %", "ddp.no_such_field %", ":5:12:", "unknown name ddp.no_such_field"),
        ("num_attention_heads %", "derived.no_such_value %", ":5:12:", "unknown name derived.no_such_value"),
        (" == 0", " = 0", ":5:12:", "expected an expression"),
        (" == 0", " ** 2", ":5:12:", "expressions have no"),
        ("needs: num_attention_heads", "needs: open(num_attention_heads)", ":5:12:", "one of the functions"),
        ("    needs:", "    need:", ":5:5:", "did you mean needs?"),
        ("source: bridge:", "source: brigde:", ":7:13:", "did you mean bridge?"),
        ("source: bridge", "failure_mode: later\n    source: bridge", ":7:19:", "expected one of refused"),
    ],
)
def test_a_mistake_is_reported_with_its_place(tmp_path: Path, old: str, new: str, place: str, message: str) -> None:
    errors = load(tmp_path, TABLE.replace(old, new))
    assert f"{place} " in errors
    assert message in errors


def judge(values: dict[str, ConfigData], version: str = "0.6.2") -> tuple[list[str], tuple[str, ...]]:
    broken, unknown = judge_constraints(MergedConfig(values), version)
    return [note.name for note in broken], unknown


@pytest.mark.parametrize(("tensor", "is_broken"), [(8, False), (6, True), (None, False)])
def test_a_remainder_decides_where_both_settings_are_known(tensor: int | None, is_broken: bool) -> None:
    name = "heads_divide_over_tensor_ranks"
    broken, unknown = judge({"num_attention_heads": 32, "tensor_model_parallel_size": tensor})
    assert (name in broken, name in unknown) == (is_broken, False)


def test_a_setting_that_is_not_known_leaves_its_constraint_unknown() -> None:
    broken, unknown = judge({"num_attention_heads": 32})
    assert broken == []
    assert "heads_divide_over_tensor_ranks" in unknown


def test_a_constraint_is_judged_only_in_the_releases_that_check_it() -> None:
    unknown = {release: set(judge({}, release)[1]) for release in known_releases()}
    for name, constraint in constraint_table().constraints.items():
        checked_in = [release for release in known_releases() if constraint.is_checked_in(release)]
        assert checked_in, name
        for release in known_releases():
            assert (name in unknown[release]) <= (release in checked_in), name


def test_an_edit_is_blamed_for_the_constraint_that_it_breaks() -> None:
    overlap = edit("overlap_moe_expert_parallel_comm", True)
    (problem,) = find_problems([overlap], config(recompute_granularity="full"))
    assert problem.name == "ep_overlap_excludes_full_recompute"
    assert problem.text.startswith("disable full recomputation when enabling overlap_moe_expert_parallel_comm")
    assert find_problems([overlap], config(recompute_granularity=None)) == ()


@pytest.mark.parametrize("release", known_releases())
def test_the_fused_router_is_not_combined_with_padding_that_changes_its_map_in_place(release: str) -> None:
    name = "router_padding_excludes_fused_router"
    fused = edit("moe_router_fusion", True)
    padded: dict[str, ConfigData] = {
        "moe_router_padding_for_quantization": True,
        "fp8": "e4m3",
        "moe_permute_fusion": False,
    }
    problems = find_problems([fused], config(moe_token_dispatcher_type="alltoall", **padded), release)
    assert name in {problem.name for problem in problems}
    text = next(problem.text for problem in problems if problem.name == name)
    assert "cannot be built or trained: one of the variables needed for gradient computation" in text
    both = [fused, edit("moe_permute_fusion", True)]  # a fused permutation pads without it, in an experiment alone
    for experiments in (False, True):
        run = config(moe_token_dispatcher_type="alltoall", enable_experimental=experiments, **padded)
        assert (name in {problem.name for problem in find_problems(both, run, release)}) is not experiments
    for harmless in (
        config(moe_token_dispatcher_type="flex", **padded),
        config(moe_token_dispatcher_type="alltoall", moe_router_padding_for_quantization=False),
    ):
        assert name not in {problem.name for problem in find_problems([fused], harmless, release)}


@pytest.mark.parametrize("release", known_releases())
def test_the_fused_router_takes_as_many_experts_of_each_group(release: str) -> None:
    def broken(**settings: ConfigData) -> set[str]:
        groups: dict[str, ConfigData] = {"num_moe_experts": 32, "moe_router_num_groups": 8, **settings}
        problems = find_problems([edit("moe_router_fusion", True)], config(**groups), release)
        return {problem.name for problem in problems}

    name = "fused_router_takes_as_many_experts_of_each_group"
    assert name in broken(moe_router_topk=6, moe_router_group_topk=4)
    assert name not in broken(moe_router_topk=8, moe_router_group_topk=4)
    assert name not in broken(moe_router_topk=6, moe_router_group_topk=None)


@pytest.mark.parametrize("release", known_releases())
def test_fused_ropes_of_latent_attention_take_a_power_of_two_of_heads(release: str) -> None:
    def broken(heads: int, tensor: int = 1, *, latent: bool = True) -> set[str]:
        sizes: dict[str, ConfigData] = {"num_attention_heads": heads, "tensor_model_parallel_size": tensor}
        settings = config(**sizes, multi_latent_attention=latent, rope_type="yarn")
        return {problem.name for problem in find_problems([edit("apply_rope_fusion", True)], settings, release)}

    name = "latent_attention_rotates_a_power_of_two_of_heads"
    assert name in broken(12)
    assert name in broken(40, tensor=2)
    assert name not in broken(16)
    assert name not in broken(128, tensor=8)
    assert name not in broken(12, latent=False)


def test_padding_under_its_older_name_counts_and_padding_into_a_map_of_its_own_does_not() -> None:
    settings = {
        "model.moe_router_fusion": True,
        "model.moe_router_padding_for_fp8": True,
        "model.moe_token_dispatcher_type": "alltoall",
        "model.moe_permute_fusion": True,
    }

    def broken(experimental: bool) -> set[str]:
        paths = settings | {"dist.enable_megatron_core_experimental": experimental}
        return {note.name for note in judge_values(MergedConfig({}), paths, "0.6.2")[0]}

    assert "router_padding_excludes_fused_router" in broken(experimental=False)
    assert "router_padding_excludes_fused_router" not in broken(experimental=True)


def test_an_edit_is_not_blamed_for_a_constraint_that_was_broken_before() -> None:
    broken_already = config(sequence_parallel=True, tensor_model_parallel_size=1)
    assert find_problems([edit("moe_permute_fusion", True)], broken_already) == ()


@pytest.mark.parametrize("release", known_releases())
@pytest.mark.parametrize(("layers", "is_refused"), [(0, True), (-4, True), (1, False)])
def test_layers_are_a_positive_number_where_they_scale_the_initialization(
    release: str, layers: int, is_refused: bool
) -> None:
    def broken(**paths: ConfigData) -> bool:
        notes, _ = judge_values(MergedConfig({}), {"model.num_layers": layers, **paths}, release)
        return "layers_scale_the_initialization" in {note.name for note in notes}

    assert broken(**{"model.output_layer_init_method": None}) is is_refused
    saved: ConfigData = {"_target_": "functools.partial"}
    assert not broken(**{"model.output_layer_init_method": saved}), "a saved configuration names its function"
