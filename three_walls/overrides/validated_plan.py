"""A plan whose every edit a launcher takes: what the checker refuses is blocked, and the rest is planned again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from three_walls.model.config import RunConfig
from three_walls.model.fact import FactSheet
from three_walls.model.finding import Finding, Note, Outcome, PlannedEdit, PlanStep
from three_walls.model.rule import Rule
from three_walls.overrides.check import find_problems as find_override_problems
from three_walls.rules.plan import make_plan


def make_validated_plan(
    rules: Iterable[Rule],
    facts: FactSheet,
    config: RunConfig,
    bridge_version: str | None = None,
    allowed: Collection[str] = (),
) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """``make_plan`` without the rules whose edits break a constraint or are no valid override; those are blocked."""
    everything = tuple(rules)
    refused: dict[str, tuple[Note, ...]] = {}
    while True:
        findings, plan = make_plan([one for one in everything if one.id not in refused], facts, allowed=allowed)
        found = _first_refused(plan, config, bridge_version)
        if found is None:
            break
        refused[found[0]] = found[1]
    if refused:
        findings = sorted([*findings, *_blocked(everything, facts, refused)], key=lambda one: one.rule)
    return findings, plan


def _first_refused(
    plan: Iterable[PlanStep], config: RunConfig, bridge_version: str | None
) -> tuple[str, tuple[Note, ...]] | None:
    """The first step whose edits, after those of the earlier steps, something speaks against."""
    edits: list[PlannedEdit] = []
    for step in plan:
        edits += step.edits
        if problems := find_override_problems(edits, config, bridge_version):
            return step.finding.rule, problems
    return None


def _blocked(rules: Iterable[Rule], facts: FactSheet, refused: dict[str, tuple[Note, ...]]) -> list[Finding]:
    """Findings of the refused rules, judged alone, as blocked."""
    findings, _ = make_plan([one for one in rules if one.id in refused], facts)
    return [
        replace(
            one,
            outcome=Outcome.BLOCKED,
            reason="; ".join(note.text for note in refused[one.rule]),
            blocked_by=(*one.blocked_by, *refused[one.rule]),
        )
        for one in findings
    ]
