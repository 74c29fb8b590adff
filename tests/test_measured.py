"""What tests take from a run that is only measured is what its report holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lockstep import Behaviour, simulate
from tests.measured import measure
from three_walls import analyze

pytestmark = pytest.mark.slow


def test_a_measured_run_has_the_parts_of_its_report(tmp_path: Path) -> None:
    paths = simulate([Behaviour(), Behaviour(slow=1.5)]).write(tmp_path)
    measured, report = measure(paths), analyze(paths)
    assert report.stragglers
    for part in ("ranks", "step", "budget", "budget_of", "stragglers", "waits", "alignment", "config", "inputs"):
        assert getattr(measured, part) == getattr(report, part), part
    assert dict(measured.facts.facts) == dict(report.facts.facts)
    assert [warning for warning in report.warnings if warning not in measured.warnings] == []
    with pytest.raises(AttributeError):
        _ = measured.plan
