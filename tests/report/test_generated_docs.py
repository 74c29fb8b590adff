"""docs/generated is up to date with the code, and the terms of a report are defined once."""

from __future__ import annotations

import json
from functools import cache

import jsonschema
import pytest

from tests.locked_versions import not_older
from tests.paths import REPOSITORY
from three_walls.advice.finding import BASES
from three_walls.report.json_report import render_json
from three_walls.report.report import Report
from three_walls.report.sections.facts import GAIN_BASES, TERMS
from tools.generate_report_docs import generate

pytestmark = pytest.mark.slow

GENERATED = REPOSITORY / "docs" / "generated"
FILES = ("report.schema.json", "report-json.md", "compare.schema.json", "compare-json.md", "glossary.md")


written = cache(generate)


@not_older("pydantic")
@pytest.mark.parametrize("name", FILES)
def test_it_is_current(name: str) -> None:
    assert (GENERATED / name).read_text(encoding="utf-8") == written()[name], "python -m tools.generate_report_docs"


def test_the_published_schema_is_valid_and_a_report_follows_it(report: Report) -> None:
    schema = json.loads((GENERATED / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(render_json(report)))


def test_every_type_is_described() -> None:
    schema = json.loads((GENERATED / "report.schema.json").read_text(encoding="utf-8"))
    assert [name for name, part in schema["$defs"].items() if not part["description"]] == []


def test_every_basis_of_a_gain_and_every_term_has_one_definition(page: str) -> None:
    assert set(GAIN_BASES) == set(BASES)
    help_text = page[page.index('<section id="reading"') :]
    for definition in (*GAIN_BASES.values(), *TERMS.values()):
        assert definition.partition("'")[0] in help_text
