"""The gate fails where a command became slower, and not where some runs were disturbed, or one was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from benchmarks import gate

RECORD = "# kept\nallowed_growth_fraction: 0.25\nratios:\n  analyze to floor: 4.0\n"


@dataclass
class _Measured(gate.Ratio):
    """A ratio whose rounds take the seconds of ``takes``: before, measured, after. The last one repeats."""

    takes: list[tuple[float, float, float]] = field(default_factory=list)

    def run(self) -> None:
        before, measured, after = self.takes.pop(0) if len(self.takes) > 1 else self.takes[0]
        self.measured_s.append(measured)
        self.unit_s.append((before, after))


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def run(*takes: float | tuple[float, float, float], options: tuple[str, ...] = ()) -> Result:
        monkeypatch.setattr(gate, "RECORD", tmp_path / "ratios.yaml")
        (tmp_path / "ratios.yaml").write_text(RECORD)
        rounds = [take if isinstance(take, tuple) else (1.0, take, 1.0) for take in takes]
        monkeypatch.setattr(gate, "list_ratios", lambda _: [_Measured("analyze to floor", [], [], takes=rounds)])
        return CliRunner().invoke(gate.main, options)

    return run


def test_growth_within_the_limit_passes(judge: Callable[..., Result]) -> None:
    assert judge(4.9).exit_code == 0


def test_growth_beyond_the_limit_fails_and_shows_how_to_renew_the_record(judge: Callable[..., Result]) -> None:
    done = judge(5.1)
    assert done.exit_code == 1
    assert "analyze to floor: 5.10 (10 rounds, at best 5.10 s / 1.00 s of CPU; at most 5.00)" in done.output
    assert "python benchmarks/gate.py --record" in done.output


def test_disturbed_rounds_do_not_count(judge: Callable[..., Result]) -> None:
    assert judge(9.0, 9.0, 8.0, 7.0, 4.1).exit_code == 0


def test_a_unit_that_was_lucky_once_does_not_count(judge: Callable[..., Result]) -> None:
    assert judge((1.5, 6.0, 1.5), (0.75, 6.0, 1.5), (1.5, 6.0, 1.5)).exit_code == 0  # 8.0 of the best, 4.0 of a round


def test_units_that_are_always_faster_do_count(judge: Callable[..., Result]) -> None:
    assert judge((0.75, 6.0, 0.75)).exit_code == 1


def test_the_record_is_renewed_and_keeps_its_comment(judge: Callable[..., Result], tmp_path: Path) -> None:
    assert judge(5.25, options=("--record",)).exit_code == 0
    text = (tmp_path / "ratios.yaml").read_text()
    assert text.startswith("# kept\n")
    assert yaml.safe_load(text) == {"allowed_growth_fraction": 0.25, "ratios": {"analyze to floor": 5.25}}


def test_the_record_has_a_limit_for_every_ratio() -> None:
    recorded = yaml.safe_load(gate.RECORD.read_text())
    assert all(value > 0 for value in recorded["ratios"].values())
