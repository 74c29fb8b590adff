"""Findings outside the plan: those that no setting fixes, undecided and blocked ones, and all other rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from three_walls.advice.finding import Finding, Outcome
from three_walls.lib.text import format_name
from three_walls.report.formats import describe_gain, format_wall
from three_walls.report.overrides_file import slug
from three_walls.report.report import Report
from three_walls.report.section import (
    MANY_ROWS,
    Block,
    Card,
    Column,
    Fold,
    Inline,
    Note,
    PageOnly,
    Section,
    Table,
    Text,
)
from three_walls.report.sections.plan import list_confirmations, list_evidence, tabulate_edits

MEANINGS = {
    Outcome.FOUND: "the symptom is there, and no setting fixes it",
    Outcome.RECOMMENDED: "may help; no replay tells by how much",
    Outcome.ALTERNATIVE: "would help, but is not in the plan",
    Outcome.BLOCKED: "would help, but a requirement fails",
    Outcome.UNKNOWN: "a fact is missing",
    Outcome.ERROR: "the rule itself failed",
    Outcome.NOT_NEEDED: "the symptom is absent",
    Outcome.NOT_APPLICABLE: "the rule is for other hardware, another framework or another model",
}
"""Outcome -> what it means for the reader; those that call for action come first."""

WITH_EDITS = (Outcome.RECOMMENDED, Outcome.ALTERNATIVE, Outcome.BLOCKED)
_BADGES = {
    Outcome.RECOMMENDED: "badge good",
    Outcome.ALTERNATIVE: "badge good",
    Outcome.BLOCKED: "badge warn",
    Outcome.UNKNOWN: "badge warn",
    Outcome.ERROR: "badge bad",
}
_PROVIDED = "; the training log (--log), --config or --set provides them"
MOST_NAMES = 4
"""So many missing facts or undecided rules are named in a cell; the others are counted."""


@dataclass(frozen=True, slots=True)
class MissingFacts:
    """Facts that are missing for the same reason, and the rules that they leave undecided."""

    reason: str
    names: tuple[str, ...]
    rules: tuple[str, ...]

    @property
    def are_settings(self) -> bool:
        """Whether all of them are settings of the run: a log or a saved configuration gives them all at once."""
        return all(name.startswith(("config.", "env.")) for name in self.names)


def findings(report: Report) -> Section:
    """Findings that no setting fixes, missing facts, blocked rules; then every rule outside the plan, by outcome."""
    groups = group_by_outcome(report)
    blocks: list[Block] = []
    blocks += [_describe_found(finding) for finding in groups.get(Outcome.FOUND, ())]
    missing = group_missing_facts(report)
    if missing:
        columns = (
            Column("Missing", lambda row: _name_some(tuple(report.facts.get(name).label for name in row.names))),
            Column("Why", lambda row: f"{row.reason}{_PROVIDED if row.are_settings else ''}"),
            Column("Undecided rules", lambda row: _name_some(row.rules), role="muted"),
        )
        lead = "These rules lack a fact. Provide it, or capture again, to decide them."
        blocks.append(Table("missing_facts", columns, missing, "Undecided", lead, is_compact=True))
    left_out = [finding for outcome in WITH_EDITS[:2] for finding in groups.get(outcome, ())]
    if left_out:
        blocks.append(_tabulate_left_out(left_out, report.verdict.no_replay_reason))
    obstacles = [finding for outcome in (Outcome.BLOCKED, Outcome.ERROR) for finding in groups.get(outcome, ())]
    if obstacles:
        columns = (
            Column("Rule", "rule", role="code"),
            Column("Outcome", lambda finding: finding.outcome.value),
            Column("Why", _describe_obstacle),
        )
        blocks.append(Table("blocked", columns, obstacles, "Blocked", terminal_rows=MANY_ROWS, is_compact=True))
    near = [finding for finding in report.findings if finding.near]
    if near:
        columns = (
            Column("Rule", "rule", role="code"),
            Column("What it does", "title"),
            Column("What is near", "near"),
        )
        lead = "These rules are not in the plan because a value misses its threshold, by little."
        blocks.append(Table("near", columns, near, "Near", lead, terminal_rows=MANY_ROWS, is_compact=True))
    folds = tuple(
        _fold(report, outcome, members) for outcome, members in groups.items() if outcome is not Outcome.FOUND
    )
    if folds:
        blocks.append(PageOnly(folds))
    return Section(
        "findings",
        "Findings outside the plan",
        tuple(blocks),
        link="Findings",
        is_folded=True,
        empty="None: every rule is in the plan.",
    )


_SEEN = {Outcome.FOUND: "not seen", Outcome.NOT_NEEDED: "seen", Outcome.UNKNOWN: "cannot be told"}
"""Outcome of a rule that looks for what is configured -> what the trace shows of it; what is not seen comes first."""


def configured(report: Report) -> Section | None:
    """What the configuration asks for, whether the trace shows it, and why not."""
    asked = [finding for finding in report.findings if finding.configured and finding.outcome in _SEEN]
    rows = sorted(asked, key=lambda finding: (list(_SEEN).index(finding.outcome), finding.configured))
    if not rows:
        return None
    columns = (
        Column("Configured", "configured"),
        Column("In the step", lambda finding: _SEEN[finding.outcome]),
        Column("Cause", _name_cause, width="wide"),
        Column("What was compared", "reason", role="muted", in_terminal=False, width="wide"),
        Column("Rule", "rule", role="code", in_terminal=False),
    )
    return Section(
        "configured",
        "Configured and seen",
        (Table("configured", columns, rows, is_compact=True),),
        lead="Overlaps, graphs, fusions, dispatchers, number formats and recompute that the configuration asks for, "
        "and whether they happen.",
        link="Configured",
    )


def _name_cause(finding: Finding) -> str:
    if finding.outcome is Outcome.FOUND:
        return finding.cause or "neither the trace nor the environment names one"
    return finding.reason if finding.outcome is Outcome.UNKNOWN else ""


def group_by_outcome(report: Report) -> dict[Outcome, tuple[Finding, ...]]:
    """Findings that are not in the plan."""
    planned = {step.rule for step in report.plan}
    others = [finding for finding in report.findings if finding.rule not in planned]
    groups = {outcome: tuple(f for f in others if f.outcome is outcome) for outcome in MEANINGS}
    return {outcome: members for outcome, members in groups.items() if members}


def group_missing_facts(report: Report) -> tuple[MissingFacts, ...]:
    """The missing facts behind undecided rules, by reason: the reason that leaves most rules undecided first."""
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


def _name_some(names: tuple[str, ...]) -> str:
    """All of ``names``, or the first and how many are left."""
    rest = len(names) - MOST_NAMES
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:MOST_NAMES])} and {rest} more"


def _describe_obstacle(finding: Finding) -> str:
    if finding.outcome is Outcome.BLOCKED and finding.blocked_by:
        return "; ".join(note.text or note.name for note in finding.blocked_by)
    return finding.reason


def _tabulate_left_out(left_out: list[Finding], because: str) -> Table:
    """``because``: why nothing was replayed, so that there is no plan that could leave them out; else empty."""
    columns = (
        Column("Rule", "rule", role="code"),
        Column("What it does", "title"),
        Column("On its own", lambda finding: describe_gain(finding.gain_ns)),
        Column("Why" if because else "Why not", "reason"),
    )
    lead = "These edits may help. The plan leaves them out."
    if because:
        lead = f"These edits may help. There is no plan, because the step cannot be replayed: {because}."
    title = "May help" if because else "Left out"
    return Table("left_out", columns, left_out, title, lead, terminal_rows=MANY_ROWS, is_compact=True)


def _describe_found(finding: Finding) -> Card:
    evidence = list_evidence(finding)
    return Card(
        title=(finding.title, Text("not fixable by configuration", "badge warn")),
        tag=finding.rule,
        anchor=f"rule-{slug(finding.rule)}",
        subtitle=(format_wall(finding.wall, finding.sub_wall),),
        blocks=(
            Note(finding.reason),
            Note(finding.advice, "What to do:"),
            *((PageOnly(tuple(evidence)),) if evidence else ()),
        ),
    )


def _fold(report: Report, outcome: Outcome, members: tuple[Finding, ...]) -> Fold:
    badge = Text(format_name(outcome.value), _BADGES.get(outcome, "badge"))
    summary: tuple[Inline, ...] = (badge, MEANINGS[outcome], Text(f"({len(members)})", "muted"))
    return Fold(summary, tuple(_describe(report, finding) for finding in members), role="outcome")


def _describe(report: Report, finding: Finding) -> Card:
    subtitle = [format_wall(finding.wall, finding.sub_wall)]
    has_gain = finding.gain_ns.high is not None or finding.gain_ns.cost_fraction is not None
    if has_gain and finding.outcome in WITH_EDITS:
        subtitle.append(describe_gain(finding.gain_ns))
    return Card(
        title=finding.title,
        tag=finding.rule,
        anchor=f"rule-{slug(finding.rule)}",
        subtitle=tuple(subtitle),
        blocks=tuple(_list_blocks(report, finding)),
    )


def _list_blocks(report: Report, finding: Finding) -> Iterator[Block]:
    yield Note(finding.reason)
    if finding.missing:
        yield Note(", ".join(report.facts.get(name).label for name in finding.missing), "Missing:")
    for note in finding.blocked_by:
        yield Note((note.text or note.name, Text(note.source, "source")), "Blocked:")
    if finding.edits and finding.outcome in WITH_EDITS:
        yield tabulate_edits(report, finding.edits, f"finding_{finding.rule}_edits")
    if finding.confirm_first:
        yield list_confirmations(finding.confirm_first)
    yield from list_evidence(finding)
