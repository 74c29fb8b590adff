"""tables/collective-owners.yaml is read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.nvtx_ranges import CollectiveOwners, collective_owners

SHIPPED = (TABLES_DIR / "collective-owners.yaml").read_text()


def test_the_shipped_table_loads() -> None:
    assert {row.owner for row in collective_owners().owners} == {"data_parallel", "tensor_parallel", "tokens"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SHIPPED.replace("owner: tokens", "owner: token"), "tokens"),
        (SHIPPED.replace("owners:", "owner:"), "did you mean"),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, wrong: str, message: str) -> None:
    path = tmp_path / "collective-owners.yaml"
    path.write_text(wrong)
    with pytest.raises(RuleBaseError, match=message):
        load_table(path, CollectiveOwners)
