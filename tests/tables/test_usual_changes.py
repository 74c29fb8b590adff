"""What settings usually change is what measured edits say."""

from __future__ import annotations

import math
import re

import pytest
import yaml

from tests.paths import REPOSITORY
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.usual_changes import usual_changes

BELONGS = {
    "cross_entropy_fusion_impl", "cuda_graph_modules", "cuda_graph_scope", "moe_flex_dispatcher_backend",
    "moe_router_padding_for_fp8", "overlap_param_gather", "recompute_method", "recompute_modules",
    "recompute_num_layers", "te_rng_tracker", "use_te_rng_tracker",
}  # fmt: skip
"""What edits set beside the setting that they are about."""


@pytest.fixture(scope="module")
def measured() -> dict[str, list[float]]:
    """Of every setting the logarithms of the steps with it over those before."""
    found: dict[str, list[float]] = {}
    for edit in yaml.safe_load((REPOSITORY / "benchmarks" / "measured_pairs.yaml").read_text())["edits"]:
        values = dict(text.split("=", 1) for text in edit.get("set", ()) if not text.startswith("env_vars."))
        names = values.keys() - BELONGS
        if len(names) == 1 and values.get("micro_batch_size", "2") == "2":
            found.setdefault(names.pop(), []).append(math.log(edit["edited_ms"] / edit["base_ms"]))
    return found


def test_every_number_is_the_root_mean_square_of_the_edits_of_its_setting(measured: dict[str, list[float]]) -> None:
    text = (TABLES_DIR / "usual-changes.yaml").read_text()
    counts = {name: int(count) for name, count in re.findall(r"(?m)^  (\w+): [\d.]+ # (\d+)$", text)}
    assert counts.keys() == usual_changes().settings.keys()
    for name, change in usual_changes().settings.items():
        logs = measured[name]
        assert 4 <= counts[name] <= len(logs), name  # more were measured since
        assert change == pytest.approx(math.sqrt(sum(log**2 for log in logs) / len(logs)), rel=0.1), name


def test_a_setting_that_nobody_measured_changes_what_others_do() -> None:
    assert usual_changes().ratio("a_setting_of_my_own") == 1
    assert usual_changes().ratio("cuda_graph_impl") > 3
