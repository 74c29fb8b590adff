"""Several traces of one run, of which some cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from lockstep import Behaviour, simulate

from three_walls import analyze
from three_walls.cli.main import cli
from three_walls.lib.errors import InputError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return simulate([Behaviour()] * 3, steps=3).write(tmp_path_factory.mktemp("run"))


def test_a_damaged_trace_of_several_costs_its_rank_alone_and_the_report_names_it(
    paths: list[Path], tmp_path: Path
) -> None:
    damaged = tmp_path / "rank1.sqlite"
    damaged.write_bytes(paths[1].read_bytes()[:6000])
    report = analyze([paths[0], damaged, paths[2]])
    assert [rank.rank for rank in report.ranks] == [0, 2]
    (warning,) = [warning for warning in report.warnings if warning.code == "trace-unreadable"]
    assert warning.message.startswith("A trace is left out")
    assert "rank1.sqlite" in warning.message
    assert str(tmp_path) not in warning.message
    assert not any(wait.resolved for wait in report.waits)  # their groups are not complete


def test_a_run_whose_traces_can_all_be_read_has_no_such_warning(paths: list[Path]) -> None:
    assert "trace-unreadable" not in {warning.code for warning in analyze(paths).warnings}


def test_where_no_trace_can_be_read_the_first_error_ends_the_analysis(tmp_path: Path) -> None:
    for name in ("a.sqlite", "b.sqlite"):
        (tmp_path / name).write_text("no database")
    with pytest.raises(InputError, match=r"a\.sqlite: expected a SQLite export"):
        analyze(tmp_path)


def test_the_command_warns_of_an_unreadable_trace_on_stderr_and_succeeds(paths: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "rank1.sqlite"
    damaged.write_bytes(b"")
    arguments = ["analyze", str(paths[0]), str(damaged), "--out", str(tmp_path / "out"), "--quiet"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "three-walls: warning: A trace is left out" in result.stderr
    assert "rank1.sqlite" in result.stderr
