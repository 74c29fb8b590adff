"""Predicted gains against measured ones, on the base traces that the repository holds."""

from __future__ import annotations

from tests.paths import REPOSITORY
from tools import accuracy
from tools.accuracy import correlate_ranks, find_base, read_edits


def test_ranks_correlate_with_themselves_and_against_their_reverse() -> None:
    assert correlate_ranks([(1.0, 10.0), (2.0, 20.0), (3.0, 40.0)]) == 1.0
    assert correlate_ranks([(1.0, 40.0), (2.0, 20.0), (3.0, 10.0)]) == -1.0
    assert correlate_ranks([(1.0, 1.0), (2.0, 2.0)]) is None


def test_every_measured_edit_has_a_base_trace_in_the_repository() -> None:
    assert [edit.base for edit in read_edits() if find_base(edit.base) is None] == []


def test_the_page_on_measured_pairs_has_the_figures_of_the_data() -> None:
    page = (REPOSITORY / "docs" / "measured-pairs.md").read_text().replace(",", "")
    groups = accuracy.read_groups()
    missing = [run for runs in groups.values() for run in runs if f"| {run['step_ms']} |" not in page]
    assert missing == []
