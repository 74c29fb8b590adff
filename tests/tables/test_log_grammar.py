"""The grammar of log lines as data: every row has its reason, and mistakes are named with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.model.errors import RuleBaseError
from three_walls.resources import RULES_DIR
from three_walls.rules.sources import check_pointer, load_sources
from three_walls.tables.log_grammar import BLOCK_KINDS, LINE_KINDS, LOG_LINES_FILE, load_log_grammar, log_grammar
from three_walls.tables.strict_yaml import Problems, load_strict


def test_every_kind_has_a_line() -> None:
    grammar = log_grammar()
    assert {row.kind for row in grammar.lines} == set(LINE_KINDS)
    assert {row.kind for row in grammar.blocks} == set(BLOCK_KINDS)


def test_every_source_is_known() -> None:
    problems = Problems()
    sources = load_sources(RULES_DIR / "sources.yaml")
    top = problems.entries(load_strict(LOG_LINES_FILE, problems))
    rows = [problems.entries(row) for part in ("lines", "blocks") for row in problems.items(top[part])]
    pointers = [problems.text(row["source"]) for row in rows if "source" in row]
    assert [wrong for pointer in pointers if (wrong := check_pointer(pointer, sources))] == []
    problems.raise_if_any()
    assert len(pointers) > 20


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("kind: step_time", "kind: step_tme", "did you mean step_time"),
        ("values: {elapsed: s, tflops: number}", "values: {length: s, tflops: number}", "no group of the pattern"),
        ("required: [elapsed, tflops]", "required: [elapsed, power]", "required power is neither"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    text = LOG_LINES_FILE.read_text()
    assert old in text
    (tmp_path / "log-lines.yaml").write_text(text.replace(old, new))
    with pytest.raises(RuleBaseError, match=complaint):
        load_log_grammar(tmp_path / "log-lines.yaml")
