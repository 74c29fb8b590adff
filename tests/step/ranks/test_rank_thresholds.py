"""tables/ranks.yaml is read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.thresholds import RankThresholds, default_rank_thresholds

SHIPPED = (TABLES_DIR / "ranks.yaml").read_text()


def test_the_shipped_thresholds_load() -> None:
    assert 0 < default_rank_thresholds().minimum_late_fraction < 1
    assert default_rank_thresholds().maximum_end_spread_ns == 100_000


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (SHIPPED.replace("minimum_late_fraction", "minimum_lat_fraction"), "did you mean"),
        (SHIPPED.replace("value: 0.05", "value: 5.0"), "expected a number from 0 to 1"),
        (SHIPPED.replace("value: 0.05", "value: '0.05'"), "expected a number"),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, wrong: str, expected: str) -> None:
    path = tmp_path / "ranks.yaml"
    path.write_text(wrong)
    with pytest.raises(RuleBaseError, match=expected):
        load_table(path, RankThresholds)
