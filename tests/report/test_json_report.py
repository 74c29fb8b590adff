"""report.json keeps its contract: schema, sums, nulls, bytes, and it reads back as the report it was."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.paths import REPOSITORY
from tests.report.sample_report import CASES, load_case
from three_walls.advice.finding import Outcome
from three_walls.lib.errors import UsageError
from three_walls.lib.fact import Fact, FactSheet
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.report.json_report import load_report, render_json, report_schema
from three_walls.report.report import Report
from three_walls.tables.buckets import COMPUTE_CATEGORIES, SubWall, Wall

pytestmark = pytest.mark.slow


def forbid_unknown_fields(schema: Any) -> Any:
    """The published schema tolerates newer fields; those of this release must all be in it."""
    if isinstance(schema, list):
        return [forbid_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: forbid_unknown_fields(part) for name, part in schema.items()}
    return closed | {"additionalProperties": False} if "properties" in schema and "required" in schema else closed


def validate(report: Report) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(render_json(report))
    jsonschema.Draft202012Validator(forbid_unknown_fields(report_schema())).validate(loaded)
    return loaded


@pytest.mark.parametrize("name", CASES)
def test_a_report_follows_the_schema_which_knows_every_field(name: str) -> None:
    assert set(validate(load_case(name))) == set(report_schema()["required"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": "2.6"}', "report.json of schema 2.6: this release reads 3.x; analyze the trace again"),
        ('{"schema_version": "4.0"}', "report.json of schema 4.0: this release reads 3.x; analyze the trace again"),
        ('{"schema_version": "3.0"}', "expected a report.json of schema 3.0, found facts: is missing"),
        ('{"schema_version": "3.0", "facts": {}}', "expected a report.json of schema 3.0, found tool_version: "),
        ("[]", "expected a report.json, found no schema_version in it"),
        ('{"schema_version": "1.0", "kept": {}, "runs": [], "pairs": []}', "found the results of a tuning"),
        ("not json", "expected a report.json, found none (it is no JSON text)"),
        ("[" * 100_000, "expected a report.json, found none (it is no JSON text)"),
        (None, "expected a report.json, found none (No such file or directory)"),
        ('{"schema_version": "2\\r\\u001b[31m' + "9" * 500 + '"}', "report.json of schema 2\\r\\x1b[31m999"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_report(tmp_path / "report.json")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "counterfactuals",
            [{"without": ["x"], "step_ns": 1, "saved_ns": 1}],
            "found verdict.counterfactuals.0.without: x",
        ),
        ("replayed_step_ns", 0, "verdict.replayed_step_ns: a step of no length"),
    ],
)
def test_a_value_that_no_release_writes_is_refused_where_the_report_is_read(
    report: Report, tmp_path: Path, field: str, value: object, message: str
) -> None:
    document = json.loads(render_json(report))
    document["verdict"][field] = value
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=re.escape(message)):
        load_report(tmp_path / "report.json")


def test_columns_of_a_lane_that_differ_in_length_are_refused(report: Report, tmp_path: Path) -> None:
    document = json.loads(render_json(report))
    lane = next(lane for rank in document["timeline"]["ranks"] for lane in rank["lanes"] if lane["category"])
    lane["category"] *= 2
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="columns of unequal length in the lane"):
        load_report(tmp_path / "report.json")


def test_a_pipe_or_a_device_in_the_place_of_a_report_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.json")
    for path in (tmp_path / "report.json", Path("/dev/zero")):
        with pytest.raises(UsageError, match="found a pipe or a device"):
            load_report(path)


def test_a_newer_minor_version_is_read_and_follows_the_schema(report: Report, tmp_path: Path) -> None:
    newer = json.loads(render_json(report)) | {"schema_version": "3.9", "something_new": 1}
    jsonschema.Draft202012Validator(report_schema()).validate(newer)
    (tmp_path / "report.json").write_text(json.dumps(newer))
    assert load_report(tmp_path / "report.json").verdict == report.verdict


def test_gap_causes_of_ranks_sum_to_their_time_without_a_compute_kernel(report: Report) -> None:
    for rank in json.loads(render_json(report))["ranks"]:
        computed = sum(rank["budget"].get(name, 0) for name in COMPUTE_CATEGORIES)
        assert sum(cause["ns"] for cause in rank["gap_causes"]) == sum(rank["budget"].values()) - computed


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
        config=replace(report.config, values=dict(reversed(report.config.values.items()))),
        ranks=tuple(replace(r, budget=dict(reversed(r.budget.items()))) for r in report.ranks),
        capabilities=dict(reversed(report.capabilities.items())),
    )
    assert render_json(report) == render_json(report) == render_json(shuffled)
    assert render_json(report).endswith("}\n")


def test_the_names_that_scripts_read(report: Report) -> None:
    loaded = json.loads(render_json(report))
    assert loaded["schema_version"] == "3.2"
    assert loaded["verdict"]["step_ns"] == 640_000_000
    assert (loaded["verdict"]["wall"], loaded["verdict"]["sub_wall"]) == ("communication", None)
    first = loaded["plan"][0]
    assert (first["order"], first["rule"]) == (1, "exposed-ep-alltoall-deepep")
    assert first["step_after_ns"] == {"low": 523_000_000, "high": 612_000_000}
    assert [first["gain_ns"][name] for name in ("low", "likely", "high")] == [0, 45_000_000, 89_000_000]
    edit = first["edits"][0]
    assert [edit[name] for name in ("key", "from_value", "to", "kind")] == [
        "moe_token_dispatcher_type",
        "alltoall",
        "flex",
        "config",
    ]
    assert loaded["overrides"]["env"] == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    assert {finding["rule"]: finding["outcome"] for finding in loaded["findings"]}["unfused-attention"] == "not_needed"
    assert loaded["config"]["values"]["moe_flex_dispatcher_backend"]["value"] is None
    assert loaded["config"]["values"]["recompute_modules"]["value"] == ["moe_act", "layernorm"]


def test_a_setting_that_is_not_finite_is_named_and_a_measurement_refused(report: Report) -> None:
    endless = replace(
        report,
        config=RunConfig(values={"clip_grad": ConfigValue(math.inf, "command line")}),
        facts=FactSheet.of([Fact("step_spread_ratio", math.nan, "ratio")]),
    )
    loaded = validate(endless)
    assert loaded["config"]["values"]["clip_grad"]["value"] == "inf"
    assert loaded["facts"]["step_spread_ratio"]["value"] == "nan"
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_json(replace(report, verdict=replace(report.verdict, margin_fraction=math.nan)))


@pytest.mark.parametrize(
    ("definition", "members"),
    [("Wall", Wall), ("SubWall", SubWall), ("Outcome", Outcome)],
    ids=["walls", "halves", "out"],
)
def test_the_schema_lists_the_members_of_enums(definition: str, members: Any) -> None:
    assert report_schema()["$defs"][definition]["enum"] == [member.value for member in members]


def test_the_document_lists_what_changed_since_version_1() -> None:
    text = (REPOSITORY / "docs" / "report-json.md").read_text(encoding="utf-8")
    for name in ("gain_ms", "gain_ns", "because", "reason", "step_ms_after", "step_after_ns", "because_of_rank"):
        assert f"`{name}`" in text
