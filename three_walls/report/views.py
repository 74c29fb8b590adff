"""Read-only views of a report that text and HTML share: selections and orders, no new numbers but sums.

Every order is total; its tie-break is the name.
"""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.model.buckets import Group, SubWall, Wall
from three_walls.model.fact import Fact
from three_walls.model.finding import Finding, Outcome, PlannedEdit
from three_walls.model.glossary import GLOSSARY_BY_NAME
from three_walls.model.report import BudgetRow, CommunicationTime, RankReport, Report

OUTCOMES_IN_ORDER = (
    Outcome.FOUND,
    Outcome.RECOMMENDED,
    Outcome.ALTERNATIVE,
    Outcome.BLOCKED,
    Outcome.UNKNOWN,
    Outcome.ERROR,
    Outcome.NOT_NEEDED,
    Outcome.NOT_APPLICABLE,
)
"""Nearest to an action first."""


@dataclass(frozen=True, slots=True)
class WallReading:
    """Ceiling of what removing one wall, or one half of the third, would give back."""

    wall: Wall
    sub_wall: SubWall | None
    recoverable_ns: int | None
    fraction: float | None
    """Of the step; ``None`` when either is unknown."""
    meaning: str
    is_verdict: bool
    is_runner_up: bool
    halves: tuple[WallReading, ...] = ()


_MEANING_OF_BOTH_HALVES = "Ceiling of both halves: they share no time, so it is their sum."


def read_walls(report: Report) -> tuple[WallReading, ...]:
    """The three walls in Megatron Core's order; the third has two halves."""
    return (
        _read_wall(report, Wall.MEMORY, None, "memory_recoverable_ns"),
        _read_wall(report, Wall.COMMUNICATION, None, "communication_recoverable_ns"),
        _read_third_wall(report),
    )


def _read_third_wall(report: Report) -> WallReading:
    compute = _read_wall(report, Wall.COMPUTE_HOST, SubWall.COMPUTE, "compute_recoverable_ns")
    host = _read_wall(report, Wall.COMPUTE_HOST, SubWall.HOST, "host_recoverable_ns")
    times = [half.recoverable_ns for half in (compute, host) if half.recoverable_ns is not None]
    total_ns = sum(times) if len(times) == 2 else None
    return WallReading(
        wall=Wall.COMPUTE_HOST,
        sub_wall=None,
        recoverable_ns=total_ns,
        fraction=share_of_step(total_ns, report),
        meaning=_MEANING_OF_BOTH_HALVES,
        is_verdict=report.verdict.wall is Wall.COMPUTE_HOST,
        is_runner_up=report.verdict.runner_up_wall is Wall.COMPUTE_HOST,
        halves=(compute, host),
    )


def _read_wall(report: Report, wall: Wall, sub_wall: SubWall | None, fact: str) -> WallReading:
    verdict = report.verdict
    recoverable_ns = verdict.recoverable_ns.get(wall.value if sub_wall is None else f"{wall.value}.{sub_wall.value}")
    return WallReading(
        wall=wall,
        sub_wall=sub_wall,
        recoverable_ns=recoverable_ns,
        fraction=share_of_step(recoverable_ns, report),
        meaning=GLOSSARY_BY_NAME[fact].meaning,
        is_verdict=(verdict.wall, verdict.sub_wall) == (wall, sub_wall),
        is_runner_up=(verdict.runner_up_wall, verdict.runner_up_sub_wall) == (wall, sub_wall),
    )


def share_of_step(value_ns: float | None, report: Report) -> float | None:
    """``value_ns`` over the verdict's step; ``None`` when either is unknown."""
    step_ns = report.verdict.step_ns
    return None if value_ns is None or not step_ns else value_ns / step_ns


def rows_with_time(report: Report) -> tuple[BudgetRow, ...]:
    """Rows of the step budget above zero, longest first."""
    return tuple(sorted((row for row in report.budget if row.ns > 0), key=lambda row: (-row.ns, row.bucket)))


def sum_groups(report: Report) -> tuple[BudgetRow, ...]:
    """The step budget summed over groups: compute, communication, copy, graph, idle."""
    sums = (_sum_group(report, group) for group in Group)
    return tuple(row for row in sums if row.ns > 0)


def _sum_group(report: Report, group: Group) -> BudgetRow:
    rows = [row for row in report.budget if row.group == group.value]
    return BudgetRow(group.value, group.value, sum(r.ns for r in rows), sum(r.fraction for r in rows), "")


def find_representative_rank(report: Report) -> RankReport | None:
    """The rank whose median step is the report's step budget; ``None`` when no rank's is."""
    of_report = {row.bucket: row.ns for row in report.budget if row.ns}
    if not of_report:
        return None
    same = (r for r in report.ranks if {bucket: ns for bucket, ns in r.budget_ns.items() if ns} == of_report)
    return next(same, None)


def order_communication(rank: RankReport) -> tuple[tuple[str, CommunicationTime], ...]:
    """Communication classes of ``rank``, the most exposed first."""
    return tuple(sorted(rank.communication.items(), key=lambda item: (-item[1].exposed_ns, item[0])))


def group_other_findings(report: Report) -> tuple[tuple[Outcome, tuple[Finding, ...]], ...]:
    """Findings that are not in the plan, by outcome."""
    planned = {step.finding.rule for step in report.plan}
    others = [finding for finding in report.findings if finding.rule not in planned]
    groups = ((outcome, tuple(f for f in others if f.outcome is outcome)) for outcome in OUTCOMES_IN_ORDER)
    return tuple((outcome, findings) for outcome, findings in groups if findings)


def explain_empty_plan(report: Report) -> str:
    """Why the plan has no entry: nothing was judged, or nothing judged recommends an edit."""
    if not report.findings:
        return "Empty: no rule could be judged."
    return "Empty: no rule recommends an edit for this run."


def find_widest_gain_ns(report: Report) -> int:
    """The highest gain of the plan: the common scale on which the plan draws its ranges; 0 when none is known."""
    return max((step.gain_ns.high or 0 for step in report.plan), default=0)


def is_set_in_run(report: Report, edit: PlannedEdit) -> bool:
    """Whether the run's value of ``edit`` is known, be it "unset": only then may "from" be shown as a value."""
    known = report.config.environment if edit.kind == "env" else report.config.values
    return edit.from_value is not None or edit.key in known


def measured_facts(report: Report) -> tuple[Fact, ...]:
    """Facts of the glossary; settings of the run stand in the config table instead."""
    return tuple(f for f in report.facts.facts.values() if not f.name.startswith(("config.", "env.")))


@dataclass(frozen=True, slots=True)
class MissingFacts:
    """Facts that are missing for one reason, and the rules that they leave undecided."""

    reason: str
    names: tuple[str, ...]
    rules: tuple[str, ...]

    @property
    def are_settings(self) -> bool:
        """Whether the run's settings are what is missing: a log or a saved configuration tells them all at once."""
        return all(name.startswith(("config.", "env.")) for name in self.names)


def group_missing_facts(report: Report) -> tuple[MissingFacts, ...]:
    """What left rules undecided, by its reason: the reason that most rules wait for first, in it the fact."""
    waiting: dict[str, list[str]] = {}
    for finding in report.findings:
        for name in finding.missing if finding.outcome is Outcome.UNKNOWN else ():
            waiting.setdefault(name, []).append(finding.rule)
    by_reason: dict[str, list[str]] = {}
    for name in sorted(waiting, key=lambda name: (-len(waiting[name]), name)):
        by_reason.setdefault(report.facts.get(name).missing_reason or "missing", []).append(name)
    groups = [
        MissingFacts(reason, tuple(names), tuple(sorted({rule for name in names for rule in waiting[name]})))
        for reason, names in by_reason.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.rules), group.reason)))
