"""More or fewer layers that are recomputed in full: any number, not only what a rule proposes."""

from __future__ import annotations

import pytest

from tests.advice.builders import rule, sheet_of, with_replay
from three_walls.advice.format.rule import Edit
from three_walls.advice.plan.recomputed_layers import change_recomputed_layers
from three_walls.advice.what_if import Changes
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, Levels, Selection, Transformation

REPEAT = Transformation(Action.REPEAT, Selection(modules=("experts",)), time=Levels(1.2, 1.0, 0.8))
FULL = with_replay(rule("full", edits=(Edit("recompute_granularity", "full"),)), REPEAT)
RUN: dict[str, ConfigData] = {
    "config.recompute_granularity": "full",
    "config.recompute_method": "block",
    "config.recompute_num_layers": 1,
    "config.num_layers": 8,
    "config.pipeline_model_parallel_size": 2,
}


def ask(run: dict[str, ConfigData] | None = None, **asked: ConfigData) -> Changes | None:
    settings = {f"config.{name}": value for name, value in asked.items()}
    return change_recomputed_layers(next(iter(settings)), "asked", settings, [FULL], sheet_of(RUN | (run or {})))


def test_each_layer_more_costs_its_share_of_what_the_rule_says_of_all_layers() -> None:
    every = ask(recompute_method="uniform")
    assert every is not None
    (more,) = every.transformations
    assert (more.action, more.time) == (Action.REPEAT, Levels(0.75 * 1.2, 0.75, 0.75 * 0.8))
    assert every.notes[0].startswith("asked: 4 of 4 layers of each stage are recomputed, now 1.")
    two = ask(recompute_num_layers=2)
    assert two is not None
    assert two.transformations[0].time.likely == 0.25


def test_each_layer_fewer_takes_its_share_of_what_is_recomputed_now() -> None:
    fewer = ask({"config.recompute_method": "uniform"}, recompute_method="block")
    assert fewer is not None
    scaled, unwaited = fewer.transformations
    assert (scaled.action, scaled.time, scaled.host) == (Action.SCALE, *[Levels(0.25, 0.25, 0.25)] * 2)
    assert (unwaited.action, unwaited.share) == (Action.UNWAIT, Levels(0.75, 0.75, 0.75))


def test_a_larger_block_of_uniform_changes_no_time() -> None:
    same = ask({"config.recompute_method": "uniform"}, recompute_num_layers=4)
    assert same is not None
    assert (same.transformations, same.unknown) == ((), ())
    assert "4 of 4 layers of each stage are recomputed, now 4" in same.notes[0]


@pytest.mark.parametrize(
    ("run", "asked", "reason"),
    [
        ({}, {"recompute_num_layers": 0}, "a number of at least 1"),
        ({"config.num_layers": 7}, {"recompute_num_layers": 2}, "how many layers each pipeline stage has"),
        (
            {"config.num_layers_in_first_pipeline_stage": 3},
            {"recompute_num_layers": 2},
            "how many layers each pipeline",
        ),
        ({"config.recompute_num_layers": 0}, {"recompute_num_layers": 2}, "how many layers the run recomputes"),
    ],
)
def test_what_cannot_be_counted_is_unknown(
    run: dict[str, ConfigData], asked: dict[str, ConfigData], reason: str
) -> None:
    found = ask(run, **asked)
    assert found is not None
    assert not found.transformations
    assert reason in found.unknown[0]


@pytest.mark.parametrize(
    ("run", "asked"),
    [
        ({"config.recompute_granularity": "selective"}, {"recompute_num_layers": 2}),
        ({"config.recompute_granularity": None}, {"recompute_method": "uniform"}),
        ({}, {"recompute_method": None}),
        ({}, {"recompute_num_layers": None, "recompute_granularity": "selective"}),
        ({}, {"recompute_granularity": "selective"}),
    ],
)
def test_what_leaves_or_begins_full_recompute_is_left_to_the_rules(
    run: dict[str, ConfigData], asked: dict[str, ConfigData]
) -> None:
    assert ask(run, **asked) is None
