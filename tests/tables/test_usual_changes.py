"""What settings usually do is what measured edits say."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np
import pytest
import yaml

from tests.paths import REPOSITORY
from tests.tune.measured_sweeps import MeasuredSweep, list_sweeps
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.usual_changes import usual_changes

BELONGS = {
    "cross_entropy_fusion_impl", "cuda_graph_modules", "cuda_graph_scope", "moe_flex_dispatcher_backend",
    "moe_router_padding_for_fp8", "overlap_param_gather", "recompute_method", "recompute_modules",
    "recompute_num_layers", "te_rng_tracker", "use_te_rng_tracker",
}  # fmt: skip
"""What edits set beside the setting that they are about."""


@pytest.fixture(scope="module")
def edits() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((REPOSITORY / "benchmarks" / "measured_pairs.yaml").read_text())[
        "edits"
    ]
    return found


@pytest.fixture(scope="module")
def measured(edits: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """Of every setting and value the logarithms of the steps with it over those before."""
    found: dict[tuple[str, str], list[float]] = {}
    for edit in edits:
        values = dict(text.split("=", 1) for text in edit.get("set", ()) if not text.startswith("env_vars."))
        names = values.keys() - BELONGS
        if len(names) == 1:
            name = names.pop()
            found.setdefault((name, values[name]), []).append(math.log(edit["edited_ms"] / edit["base_ms"]))
    return found


def test_every_number_is_the_root_mean_square_of_the_edits_of_its_setting(
    measured: dict[tuple[str, str], list[float]],
) -> None:
    text = (TABLES_DIR / "usual-changes.yaml").read_text()
    counts = {name: int(count) for name, count in re.findall(r"(?m)^  (\w+): [\d.]+ # (\d+)$", text)}
    assert counts.keys() == usual_changes().settings.keys()
    for name, change in usual_changes().settings.items():
        sizes = {"2"} if name == "micro_batch_size" else {value for own, value in measured if own == name}
        logs = [log for value in sorted(sizes) for log in measured[name, value]]
        assert 4 <= counts[name] <= len(logs), name  # more were measured since
        assert change == pytest.approx(math.sqrt(sum(log**2 for log in logs) / len(logs)), rel=0.1), name


def test_a_setting_that_nobody_measured_changes_what_others_do() -> None:
    assert usual_changes().ratio("a_setting_of_my_own") == 1
    assert usual_changes().ratio("cuda_graph_impl") > 3
    assert usual_changes().mean("a_setting_of_my_own", 1, 2) == 0


OTHERWISE = {("recompute_granularity", "selective"), ("recompute_granularity", "none")}
"""Levels that are not the mean of the edits to this value, as the table says, or another word for one that is."""


def test_every_level_is_the_mean_of_the_edits_to_its_value(measured: dict[tuple[str, str], list[float]]) -> None:
    for name, values in usual_changes().levels.items():
        (_, reference), *others = values.items()
        assert reference == 0
        if name == "micro_batch_size":
            continue
        for value, level in others:
            if (name, value) not in OTHERWISE:
                logs = measured[name, value]
                assert fmean(logs) == pytest.approx(level, abs=0.03), (name, value)
                assert abs(level) > pstdev(logs), f"edits of {name} differ by more than they do in the mean"


def read_micro_batch(base: str) -> int | None:
    """The micro-batch of a base, by its configuration."""
    configs = (REPOSITORY / "benchmarks" / "traces" / base).glob("*config*.yaml")
    found = (re.search(r"(?m)^  micro_batch_size: (\d+)$", config.read_text()) for config in configs)
    return next((int(each[1]) for each in found if each), None)


def test_levels_of_micro_batches_are_those_that_edits_between_them_show(edits: list[dict[str, Any]]) -> None:
    rows, logs = [], []
    for edit in edits:
        name, _, value = str([*edit.get("set", ()), ""][0]).partition("=")
        before = read_micro_batch(edit["base"]) if name == "micro_batch_size" and len(edit["set"]) == 1 else None
        if before and {before, int(value)} <= {1, 2, 4}:
            rows.append([(int(value) == size) - (before == size) for size in (2, 4)])
            logs.append(math.log(edit["edited_ms"] / edit["base_ms"]))
    assert len(logs) > 80
    levels = usual_changes().levels["micro_batch_size"]
    found = np.linalg.lstsq(np.array(rows, dtype=float), np.array(logs))[0]
    assert [levels["2"], levels["4"]] == pytest.approx(list(found), abs=0.03)
    assert levels["8"] == levels["4"]


def test_a_value_is_taken_to_do_what_it_usually_does_beside_the_bases() -> None:
    usual = usual_changes()
    assert usual.mean("recompute_granularity", None, "full") == 0.2
    assert usual.mean("micro_batch_size", 2, 4) == pytest.approx(-0.32)
    assert usual.mean("moe_grouped_gemm", True, False) > 0 > usual.mean("moe_grouped_gemm", False, True)
    assert usual.mean("cuda_graph_impl", "none", "full_iteration") == 0  # nobody measured it


def list_overlaps(sweep: MeasuredSweep) -> Iterator[tuple[str, str, float, float]]:
    """Of every two values that save alone, in the mean over what is beside them: the smaller saving, and by how much
    less both save together."""
    numbers = [*itertools.product(*(range(len(setting.values) + 1) for setting in sweep.space.settings))]
    logs = {choice: math.log(sweep.step_ms(choice)) for choice in numbers if sweep.values_of(choice) in sweep.sets}
    for (one, mine), (other, its) in itertools.combinations(enumerate(sweep.space.settings), 2):
        for first, second in itertools.product(range(1, len(mine.values) + 1), range(1, len(its.values) + 1)):
            beside = [choice for choice in logs if choice[one] == choice[other] == 0]
            found = [[put(choice, {one: a, other: b}) for a in (0, first) for b in (0, second)] for choice in beside]
            squares = [[logs[each] for each in four] for four in found if all(each in logs for each in four)]
            if squares:
                savings = [fmean(four[0] - four[place] for four in squares) for place in (1, 2, 3)]
                if min(savings[:2]) > 0:
                    yield mine.name, its.name, min(savings[:2]), sum(savings[:2]) - savings[2]


def put(choice: tuple[int, ...], numbers: dict[int, int]) -> tuple[int, ...]:
    return tuple(numbers.get(place, number) for place, number in enumerate(choice))


def test_two_edits_that_relieve_the_host_save_less_together() -> None:
    overlap = usual_changes().overlap
    pairs = [each for name in list_sweeps() for each in list_overlaps(MeasuredSweep(name))]
    mine = [(smaller, twice) for one, other, smaller, twice in pairs if {one, other} <= {*overlap.settings}]
    smaller, twice = (sum(each) for each in zip(*mine, strict=True))
    assert len(mine) == 10
    assert twice / smaller == pytest.approx(overlap.ratio, abs=0.02)
    assert sum(each > 0 for _, each in mine) == 9


@pytest.fixture(scope="module")
def measured_activations() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        Path(__file__).with_name("measured-activations.yaml").read_text()
    )
    return found


def test_activations_grow_with_the_micro_batch(measured_activations: dict[str, list[dict[str, Any]]]) -> None:
    for edit in measured_activations["micro_batch_size"]:
        expected = math.log(edit["after"] / edit["before"])
        assert median(edit["logs"].values()) == pytest.approx(expected, abs=0.02)


def test_activations_change_as_measured_edits_changed_them(
    measured_activations: dict[str, list[dict[str, Any]]],
) -> None:
    usual = usual_changes()
    measured = {name: edits for name, edits in measured_activations.items() if name != "micro_batch_size"}
    assert usual.activations.keys() - measured.keys() == {"cuda_graph_impl"}  # nobody measured what they keep
    for name, edits in measured.items():
        missed = []
        for edit in edits:
            growth = usual.growth(name, edit["before"], edit["after"])
            assert growth, name
            missed += [log - growth[0] for log in edit["logs"].values()]
        assert abs(fmean(missed)) < 0.07, f"{name} in the mean"
        rms = math.sqrt(fmean([log**2 for log in missed]))
        assert max(0.05, rms) - 0.01 <= usual.activations[name].miss <= max(0.05, 2 * rms, 0.1), name


def test_what_a_setting_of_my_own_does_to_activations_is_not_known() -> None:
    usual = usual_changes()
    assert usual.growth("a_setting_of_my_own", 1, 2) is None
    assert usual.growth("recompute_granularity", "full", "a_value_of_my_own") is None
    assert usual.growth("moe_permute_fusion", False, True) == (0.0, 0.05)
