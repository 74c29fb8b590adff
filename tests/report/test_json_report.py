"""report.json keeps its contract: schema, sums, nulls, bytes, and it reads back as the report it was."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.paths import REPOSITORY
from tests.report.rendered import print_plain
from tests.report.sample_report import abstained_report, sample_report, without_plan
from three_walls.model.buckets import COMPUTE_CATEGORIES, SubWall, Wall
from three_walls.model.config import ConfigValue, RunConfig
from three_walls.model.errors import UsageError
from three_walls.model.fact import Fact, FactSheet
from three_walls.model.finding import Outcome
from three_walls.model.report import Alignment, MoePart, Report, Wait
from three_walls.report.formats import escape_in_json
from three_walls.report.html_report import render_html
from three_walls.report.json_report import load_report, render_json, report_schema
from three_walls.report.overrides_file import render_overrides

pytestmark = pytest.mark.slow

REPORTS = {"full": sample_report(), "without a plan": without_plan(sample_report()), "abstained": abstained_report()}


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


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_follows_the_schema_which_knows_every_field(name: str) -> None:
    assert set(validate(REPORTS[name])) == set(report_schema()["required"])


@pytest.mark.parametrize("name", REPORTS)
def test_the_text_is_laid_out_by_two_spaces_with_numbers_on_one_line(name: str) -> None:
    report = REPORTS[name]
    text = render_json(report)
    loaded = json.loads(text)
    names = [field.name for field in fields(Report) if field.name != "schema_version"]
    assert list(loaded) == ["schema_version", *names]
    assert list(loaded["facts"]) == list(report.facts.facts)
    laid_out = json.dumps(loaded, indent=2, ensure_ascii=False)
    numbers = re.compile(r"\[\n\s+(-?\d[-+.eE\d,\s]*)\]")
    laid_out = numbers.sub(lambda found: f"[{', '.join(found[1].replace(',', ' ').split())}]", laid_out)
    assert text == escape_in_json(laid_out) + "\n"


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_reads_back_and_renders_the_same(name: str, tmp_path: Path) -> None:
    report = REPORTS[name]
    (tmp_path / "report.json").write_text(render_json(report), encoding="utf-8")
    loaded = load_report(tmp_path / "report.json")
    for render in (render_html, render_json, render_overrides, print_plain):
        assert render(loaded) == render(report)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": "2.6"}', "report.json of schema 2.6: this release reads 3.x; analyze the trace again"),
        ('{"schema_version": "4.0"}', "report.json of schema 4.0: this release reads 3.x; analyze the trace again"),
        ('{"schema_version": "3.0"}', "expected a report.json of schema 3.0, found facts: is missing"),
        ('{"schema_version": "3.0", "facts": {}}', "expected a report.json of schema 3.0, found tool_version: "),
        ("[]", "expected a report.json, found no schema_version in it"),
        ("not json", "expected a report.json, found none (it is no JSON text)"),
        ("[" * 100_000, "expected a report.json, found none (it is no JSON text)"),
        (None, "expected a report.json, found none (No such file or directory)"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_report(tmp_path / "report.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_newer_minor_version_is_read_and_follows_the_schema(report: Report, tmp_path: Path) -> None:
    newer = json.loads(render_json(report)) | {"schema_version": "3.9", "something_new": 1}
    jsonschema.Draft202012Validator(report_schema()).validate(newer)
    (tmp_path / "report.json").write_text(json.dumps(newer))
    assert load_report(tmp_path / "report.json").verdict == report.verdict


def test_an_abstention_keeps_null_null(abstained: Report) -> None:
    loaded = validate(abstained)
    verdict = loaded["verdict"]
    assert verdict["abstained"] is True
    for name in ("wall", "sub_wall", "step_ns", "runner_up_wall", "runner_up_sub_wall", "margin_fraction"):
        assert verdict[name] is None
    assert verdict["recoverable_ns"] == {"communication": None, "memory": None}
    assert [loaded["step"][name] for name in ("median_ns", "min_ns", "max_ns")] == [None, None, None]
    for name in ("budget", "stragglers", "waits", "moe_layers", "overlap_slowdown", "efficiency", "copies"):
        assert loaded[name] == []
    assert loaded["alignment"] is None


def test_what_is_not_known_of_waits_and_layers_stays_null(report: Report) -> None:
    unknown = replace(
        report,
        waits=(Wait("all_reduce", 0, None, None, None, False, "one rank"),),
        alignment=Alignment("none", None, None),
        moe_layers=(MoePart(None, "forward", "dispatch", 5, 5, 1),),
    )
    loaded = validate(unknown)
    assert loaded["waits"] == [
        {
            "communication_class": "all_reduce",
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
    assert loaded["schema_version"] == "3.0"
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


def test_a_fact_has_its_unit_and_definition_and_a_reason_where_it_is_missing(report: Report) -> None:
    facts = json.loads(render_json(report))["facts"]
    assert list(facts) == list(report.facts.facts)
    assert facts["step_ns"] == {
        "value": 640_000_000,
        "unit": "ns",
        "missing_reason": None,
        "label": "the step length",
        "meaning": "Length of the representative step.",
        "not_the_same_as": "",
        "needs": [],
    }
    assert facts["recompute_ns"]["value"] is None
    assert facts["recompute_ns"]["missing_reason"]
    assert facts["config.moe_token_dispatcher_type"]["meaning"] == ""


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
