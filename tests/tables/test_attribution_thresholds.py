"""tables/attribution.yaml is read strictly, and every value states its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.thresholds import AttributionThresholds, attribution_thresholds

SHIPPED = (TABLES_DIR / "attribution.yaml").read_text()


def test_the_shipped_thresholds_load() -> None:
    assert attribution_thresholds().maximum_launch_latency_ns == 50_000
    assert attribution_thresholds().ready_quantile == 0.1


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (SHIPPED.replace("ready_quantile", "redy_quantile"), "did you mean ready_quantile"),
        (SHIPPED.replace("value: 50_000", "value: -1"), "expected a number from 1"),
        (SHIPPED.replace("value: 24", "value: 2.4"), "expected a whole number"),
        (
            SHIPPED.replace("reason: With fewer calls of a kind", "cause: With fewer calls of a kind"),
            "unknown key cause|key reason is missing",
        ),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, wrong: str, expected: str) -> None:
    path = tmp_path / "attribution.yaml"
    path.write_text(wrong)
    with pytest.raises(RuleBaseError, match=expected):
        load_table(path, AttributionThresholds)
