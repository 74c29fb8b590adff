"""The lines of a log as data: every kind and source is known, and mistakes are named with their place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.lib.resources import RULES_DIR, TABLES_DIR
from three_walls.log.log_lines import BlockKind, LineKind, LogGrammar, log_grammar, log_timers

LOG_LINES_FILE = TABLES_DIR / "log-lines.yaml"


def test_every_kind_has_a_line() -> None:
    grammar = log_grammar()
    assert {row.kind for row in grammar.lines} == set(get_args(LineKind))
    assert {row.kind for row in grammar.blocks} == set(get_args(BlockKind))


def test_every_source_is_known() -> None:
    sources = yaml.safe_load((RULES_DIR / "sources.yaml").read_text(encoding="utf-8"))
    rows = (*log_grammar().lines, *log_grammar().blocks, *log_timers().timers)
    pointers = [row.source.partition(":") for row in rows if row.source]
    assert len(pointers) > 20
    for prefix, _, place in pointers:
        source = sources[prefix]
        assert place in source["names"] if "names" in source else re.fullmatch(r"[\w./-]+:\d+(-\d+)?", place), place


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("kind: step_time", "kind: step_tme", "did you mean step_time"),
        ("values: {elapsed: s, tflops: number}", "values: {length: s, tflops: number}", "no group of the pattern"),
        ("required: [elapsed, tflops]", "required: [elapsed, power]", "required power is neither"),
        ("anchor: 'Step Time :'", "anchor: 'Schritt für Schritt'", "expected printable ASCII"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    text = LOG_LINES_FILE.read_text()
    assert old in text
    (tmp_path / "log-lines.yaml").write_text(text.replace(old, new))
    with pytest.raises(RuleBaseError, match=complaint):
        load_table(tmp_path / "log-lines.yaml", LogGrammar)
