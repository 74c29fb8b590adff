"""report.json keeps its contract: the schema, sums, nulls and bytes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from tests.paths import REPOSITORY
from tests.report.sample_report import without_plan
from three_walls.model.buckets import COMPUTE_CATEGORIES, SubWall, Wall
from three_walls.model.config import ConfigValue, RunConfig
from three_walls.model.fact import Fact, FactSheet
from three_walls.model.finding import Outcome
from three_walls.model.report import Alignment, MoePart, Report, Wait
from three_walls.report.json_report import render_json
from three_walls.report.json_schema import load_schema

DOCUMENT = REPOSITORY / "docs" / "report-json.md"


def forbid_unknown_fields(schema: Any) -> Any:
    """The published schema tolerates newer fields; ours must all be in it."""
    if isinstance(schema, list):
        return [forbid_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: forbid_unknown_fields(part) for name, part in schema.items()}
    return closed | {"additionalProperties": False} if "properties" in schema and "required" in schema else closed


def property_names(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(property_names, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return own.union(*map(property_names, schema.values()))


def validate(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(forbid_unknown_fields(load_schema())).validate(loaded)
    return loaded


def test_the_schema_is_a_valid_draft_2020_12_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())


def test_a_full_report_validates_and_the_schema_knows_every_field(report: Report) -> None:
    loaded = validate(render_json(report))
    assert set(loaded) == set(load_schema()["required"])


def test_a_report_without_a_plan_validates(report: Report) -> None:
    assert validate(render_json(without_plan(report)))["plan"] == []


def test_an_abstention_validates_and_keeps_null_null(abstained: Report) -> None:
    loaded = validate(render_json(abstained))
    verdict = loaded["verdict"]
    assert verdict["abstained"] is True
    for name in ("wall", "sub_wall", "step_ms", "runner_up", "margin_fraction"):
        assert verdict[name] is None
    assert verdict["recoverable_ms"] == {"communication": None, "memory": None}
    assert [loaded["step"][name] for name in ("median_ms", "min_ms", "max_ms")] == [None, None, None]
    assert loaded["budget"] == []


def test_an_abstention_has_empty_lists_and_a_null_alignment(abstained: Report) -> None:
    loaded = validate(render_json(abstained))
    assert [loaded[name] for name in ("stragglers", "waits", "moe_layers", "overlap_slowdown")] == [[], [], [], []]
    assert [loaded[name] for name in ("efficiency", "copies")] == [[], []]
    assert loaded["alignment"] is None


def test_what_is_not_told_of_waits_and_layers_stays_null(report: Report) -> None:
    untold = replace(
        report,
        waits=(Wait("all_reduce", 0, None, None, None, False, "one rank"),),
        alignment=Alignment("none", None, None),
        moe_layers=(MoePart(None, "forward", "dispatch", 5, 5, 1),),
    )
    loaded = validate(render_json(untold))
    assert loaded["waits"] == [
        {
            "class": "all_reduce",
            "rank": 0,
            "wait_ns": None,
            "transfer_ns": None,
            "awaited_rank": None,
            "resolved": False,
            "note": "one rank",
        }
    ]
    assert loaded["alignment"] == {"method": "none", "residual_ns_p50": None, "residual_ns_p95": None}
    part = loaded["moe_layers"][0]
    assert [part[name] for name in ("layer", "bytes_moved", "bytes_per_s", "limit_bytes_per_s")] == [None] * 4


def test_idle_causes_of_ranks_sum_to_their_time_without_a_compute_kernel(report: Report) -> None:
    for rank in json.loads(render_json(report))["ranks"]:
        computed = sum(rank["budget"].get(name, 0) for name in COMPUTE_CATEGORIES)
        assert sum(one["ns"] for one in rank["gap_causes"]) == sum(rank["budget"].values()) - computed


def test_a_newer_minor_version_validates_against_the_published_schema(report: Report) -> None:
    loaded = json.loads(render_json(report)) | {"schema_version": "1.9", "something_new": 1}
    jsonschema.Draft202012Validator(load_schema()).validate(loaded)


def test_budget_fractions_sum_to_one(report: Report) -> None:
    budget = json.loads(render_json(report))["budget"]
    assert math.isclose(sum(row["fraction"] for row in budget), 1.0, abs_tol=1e-9)


def test_budgets_of_ranks_sum_to_their_steps(report: Report) -> None:
    for rank in json.loads(render_json(report))["ranks"]:
        for step in rank["steps"]:
            if step["kept"]:
                assert sum(step["budget"].values()) == step["end_ns"] - step["start_ns"]


def test_the_same_report_gives_the_same_bytes(report: Report) -> None:
    shuffled = replace(
        report,
        config=RunConfig(
            values=dict(reversed(report.config.values.items())),
            environment=report.config.environment,
            dialect=report.config.dialect,
            bridge_version=report.config.bridge_version,
        ),
        ranks=tuple(replace(r, budget_ns=dict(reversed(r.budget_ns.items()))) for r in report.ranks),
        capabilities=dict(reversed(report.capabilities.items())),
    )
    assert render_json(report) == render_json(report) == render_json(shuffled)
    assert render_json(report).endswith("}\n")


def test_times_are_milliseconds_and_missing_facts_are_null(report: Report) -> None:
    loaded = json.loads(render_json(report))
    assert loaded["verdict"]["step_ms"] == 640.0
    assert loaded["verdict"]["runner_up"] == {"wall": "compute_host", "sub_wall": "host"}
    assert loaded["plan"][0]["step_ms_after"] == {"low": 551.0, "high": 640.0}
    assert loaded["plan"][0]["edits"][0]["from"] == "alltoall"
    assert loaded["facts"]["recompute_ns"]["value"] is None
    assert loaded["facts"]["recompute_ns"]["missing_reason"]
    assert loaded["findings"][-1]["gain_ms"]["low"] is None
    assert loaded["config"]["moe_flex_dispatcher_backend"]["value"] is None
    assert loaded["config"]["recompute_modules"]["value"] == ["moe_act", "layernorm"]


def test_a_setting_that_is_not_finite_is_named(report: Report) -> None:
    endless = replace(
        report,
        config=RunConfig(values={"clip_grad": ConfigValue(math.inf, "command line")}),
        facts=FactSheet.of([Fact("step_spread_ratio", math.nan, "ratio")]),
    )
    loaded = validate(render_json(endless))
    assert loaded["config"]["clip_grad"]["value"] == "inf"
    assert loaded["facts"]["step_spread_ratio"]["value"] == "nan"


@pytest.mark.parametrize(
    ("definition", "words"),
    [("wall", [*Wall]), ("sub_wall", [*SubWall, None]), ("outcome", [*Outcome])],
    ids=["walls", "halves", "outcomes"],
)
def test_the_schema_lists_the_words_of_the_vocabulary(definition: str, words: list[str | None]) -> None:
    assert set(load_schema()["$defs"][definition]["enum"]) == set(words)


def test_the_document_names_every_field() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    unnamed = {name for name in property_names(load_schema()) if f"`{name}`" not in text}
    assert not unnamed
