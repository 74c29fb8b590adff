"""Printed overlaps take effect on real recipes, and change nothing else.

Against the recorded answers of Megatron-Bridge, and against itself with ``make test-bridge``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.bridge.overlap_cases import CASES, RELEASES, OverlapCase, recorded
from tests.bridge.releases import BRIDGES, EVERY_RELEASE
from three_walls.tables.bridge_releases import bridge_schema
from three_walls.tables.config_keys import config_keys, paths_of

SECTIONS = ("model", "optimizer", "ddp", "comm_overlap")
NEUTRAL = "rng.seed=1234"
"""Any override makes a list of the tuple in a userbuffers preset; so every request has one."""
_FUSED = "cfg.model.gradient_accumulation_fusion = True"
_UNFUSED = (
    "cfg.model.gradient_accumulation_fusion = cfg.model.add_bias_linear = cfg.model.add_qkv_bias = False",
    "cfg.model.cuda_graph_impl = 'none'",
)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", CASES)
def test_the_lines_are_those_that_megatron_bridge_was_asked_about(name: str, release: str) -> None:
    assert list(CASES[name].spell(release).bridge) == recorded()[name]["lines"]


@pytest.mark.parametrize("name", CASES)
def test_every_edit_took_effect_and_nothing_else_changed(name: str) -> None:
    case, changes = CASES[name], recorded()[name]["changes"]
    places = {field.rpartition(".")[2]: value for field, value in wanted(case).items()}
    for path, (_, after) in changes.items():
        assert after == places.get(path.rpartition(".")[2]), f"{path} became {after}"
    in_force = {path.rpartition(".")[2] for path in changes if not path.startswith("comm_overlap.")}
    assert in_force == places.keys()


def wanted(case: OverlapCase) -> dict[str, Any]:
    """The edits by the path that their keys have in Megatron-Bridge."""
    return {paths_of(config_keys().keys[name])[0]: value for name, value in case.edits.items()}


@EVERY_RELEASE
def test_megatron_bridge_does_what_is_recorded(release: str) -> None:
    assert ask_about_all(release) == recorded()


@EVERY_RELEASE
def test_modules_that_are_named_need_fused_accumulation_with_delayed_weight_gradients(release: str) -> None:
    """Though ``cuda_graph_impl`` is none: what rule delayed-wgrad requires. 0.4 compares members of the enum alone."""
    prepare = (*CASES["experts, section with tensor-parallel overlap"].prepare, *_UNFUSED)
    delayed = ["comm_overlap.overlap_moe_expert_parallel_comm=true", "comm_overlap.delay_wgrad_compute=true"]
    named = {
        "nothing": [],
        "attention": ["model.cuda_graph_scope=[attn]"],
        "router": ["model.cuda_graph_scope=[moe_router]", "model.moe_shared_expert_intermediate_size=64"],
    }
    emptied = [] if release < "0.5" else ["model.cuda_graph_modules=[]"]
    case = CASES["experts, no section"]
    base = {"recipe": case.recipe_of(release), "world_size": case.world_size}
    unfused = [{**base, "prepare": prepare, "overrides": [*delayed, *emptied, *lines]} for lines in named.values()]
    fused = [{**case, "prepare": [*case["prepare"], _FUSED]} for case in unfused]
    results = BRIDGES[release].ask([*unfused, *fused])
    is_checked = release >= "0.5"
    assert [result["validated"] for result in results[:3]] == [True, not is_checked, not is_checked]
    assert all(result["validated"] for result in results[3:])


def ask_about_all(release: str) -> dict[str, dict[str, Any]]:
    """What Megatron-Bridge makes of every case, as overrides and as Python, in one process."""
    schema = bridge_schema(release)
    paths = [path for path in schema.paths() if path.partition(".")[0] in SECTIONS]
    requests = []
    for case in CASES.values():
        found = case.spell(release)
        own = [NEUTRAL, *case.overrides]
        alone = {
            "recipe": case.recipe_of(release),
            "prepare": list(case.prepare),
            "overrides": own,
            "world_size": case.world_size,
            "show": paths,
        }
        requests += [alone, {**alone, "overrides": [*own, *found.bridge]}, {**alone, "python": list(found.python)}]
    results = BRIDGES[release].ask(requests)
    answers = {}
    for number, (name, case) in enumerate(CASES.items()):
        alone, overridden, in_python = results[3 * number : 3 * number + 3]
        for result in (alone, overridden, in_python):
            assert result["applied"], f"{release}, {name}: {result['message']}"
            assert result["validated"], f"{release}, {name}: {result['message']}"
        assert overridden["values"] == in_python["values"], f"{release}, {name}"
        changes = {
            path: [before, overridden["values"][path]]
            for path, before in alone["values"].items()
            if before != overridden["values"][path]
        }
        answers[name] = {"lines": list(case.spell(release).bridge), "changes": changes}
    return answers
