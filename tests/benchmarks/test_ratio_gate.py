"""The gate fails where a command became slower, and not where only its first runs were disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from benchmarks import gate

RECORD = "# kept\nallowed_growth_fraction: 0.25\nratios:\n  analyze to floor: 4.0\n"


@dataclass
class _Measured(gate.Ratio):
    """A ratio whose runs take the seconds of ``takes``, with a unit of a second."""

    takes: Iterator[float] = field(default_factory=lambda: iter(()))

    def run(self) -> None:
        self.unit_s, self.measured_s = 1.0, min(self.measured_s, next(self.takes, self.measured_s))


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def run(*takes: float, options: tuple[str, ...] = ()) -> Result:
        monkeypatch.setattr(gate, "RECORD", tmp_path / "ratios.yaml")
        (tmp_path / "ratios.yaml").write_text(RECORD)
        ratio = _Measured("analyze to floor", [], [], takes=iter(takes))
        monkeypatch.setattr(gate, "list_ratios", lambda _: [ratio])
        return CliRunner().invoke(gate.main, options)

    return run


def test_growth_within_the_limit_passes(judge: Callable[..., Result]) -> None:
    assert judge(4.9).exit_code == 0


def test_growth_beyond_the_limit_fails_and_shows_how_to_renew_the_record(judge: Callable[..., Result]) -> None:
    done = judge(5.1)
    assert done.exit_code == 1
    assert "analyze to floor: 5.10 (5.10 s / 1.00 s of CPU; at most 5.00)" in done.output
    assert "python benchmarks/gate.py --record" in done.output


def test_disturbed_rounds_do_not_count(judge: Callable[..., Result]) -> None:
    assert judge(9.0, 9.0, 8.0, 7.0, 4.1).exit_code == 0


def test_the_record_is_renewed_and_keeps_its_comment(judge: Callable[..., Result], tmp_path: Path) -> None:
    assert judge(5.25, options=("--record",)).exit_code == 0
    text = (tmp_path / "ratios.yaml").read_text()
    assert text.startswith("# kept\n")
    assert yaml.safe_load(text) == {"allowed_growth_fraction": 0.25, "ratios": {"analyze to floor": 5.25}}


def test_the_record_has_a_limit_for_every_ratio() -> None:
    recorded = yaml.safe_load(gate.RECORD.read_text())
    assert all(value > 0 for value in recorded["ratios"].values())
