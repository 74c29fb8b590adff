"""Reports that tests render: each is a file with something in every section. A test replaces what it is about."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from three_walls.advice.finding import UPPER_BOUND, Gain, Outcome, Overrides
from three_walls.report.json_report import parse_report
from three_walls.report.report import SCHEMA_VERSION, Report

MS = 1_000_000
CASES = ("eight-ranks", "unusual", "no-steps")


def case_file(name: str) -> Path:
    return Path(__file__).parent / "cases" / f"{name}.json"


@cache
def load_case(name: str) -> Report:
    """The report in that file, taken to be of this release's schema: UPDATE_GOLDEN writes it with a newer one."""
    document = json.loads(case_file(name).read_text(encoding="utf-8"))
    return parse_report(json.dumps(document | {"schema_version": SCHEMA_VERSION}), case_file(name))


def sample_report() -> Report:
    """Eight ranks, communication-bound: rank 0 computes slowest, and the others wait for it in the all-to-all."""
    return load_case("eight-ranks")


def abstained_report() -> Report:
    """No step was found: nothing is known, and the page must state that instead of showing zeros."""
    return load_case("no-steps")


def without_plan(report: Report) -> Report:
    """A healthy run: rules were judged and none recommends an edit."""
    findings = tuple(finding for finding in report.findings if finding.outcome is not Outcome.RECOMMENDED)
    return replace(report, findings=findings, plan=(), overrides=Overrides("0.4.2", (), (), {}))


def without_replay(report: Report) -> Report:
    """The same run where the step cannot be replayed: the edits stand with their upper bounds, and there is no plan."""
    verdict = replace(report.verdict, replayed_step_ns=None, no_replay_reason="the capture has no CUDA API calls")
    findings = tuple(
        replace(finding, gain_ns=Gain(0, None, finding.gain_ns.high, UPPER_BOUND)) for finding in report.findings
    )
    return replace(without_plan(report), verdict=verdict, findings=findings)
