"""Report -> report.json, the stable contract: names, units and nulls as docs/report-json.md states them.

Times end in ``_ms`` where people compare them and in ``_ns`` where scripts add them up. Unknown is
``null``, never zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from three_walls.model.buckets import BUCKETS
from three_walls.model.config import ConfigValue
from three_walls.model.fact import Fact, FactValue
from three_walls.model.finding import Finding, Gain, Note, Overrides, PlannedEdit, PlanStep
from three_walls.model.glossary import GLOSSARY_BY_NAME
from three_walls.model.report import RankReport, RankStep, Report, StepSummary, Verdict
from three_walls.model.units import known_ns_to_ms
from three_walls.report.first_trial import first_trial_as_json
from three_walls.report.json_diagnosis import diagnosis_as_json, idle_causes_as_json
from three_walls.report.json_efficiency import efficiency_as_json
from three_walls.report.json_log import log_as_json
from three_walls.report.json_recipe import recipe_as_json
from three_walls.report.json_snapshot import snapshot_as_json

Json = dict[str, Any]

TOOL_NAME = "three-walls"


def render_json(report: Report) -> str:
    """``report`` as JSON text; the same report gives the same bytes."""
    return json.dumps(report_as_json(report), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def report_as_json(report: Report) -> Json:
    """``report`` as the JSON object, every top-level field of the contract in its order."""
    return {
        "schema_version": report.schema_version,
        "tool": {"name": TOOL_NAME, "version": report.tool_version},
        "inputs": [
            {"path_name": i.path_name, "sha256": i.sha256, "nsys_version": i.nsys_version, "schema": i.schema}
            for i in report.inputs
        ],
        "verdict": _verdict(report.verdict),
        "step": _step_summary(report.step),
        "warnings": [{"code": w.code, "message": w.message} for w in report.warnings],
        "budget_of": report.budget_of,
        "budget": [
            {"bucket": r.bucket, "group": r.group, "ns": r.ns, "fraction": r.fraction, "definition": r.definition}
            for r in report.budget
        ],
        "plan": [_plan_step(step) for step in report.plan],
        "first_trial": first_trial_as_json(report.first_trial),
        "overrides": _overrides(report.overrides),
        **recipe_as_json(report),
        "findings": [_finding(finding) for finding in report.findings],
        "facts": {name: _fact(fact) for name, fact in report.facts.facts.items()},
        "launcher": {
            "dialect": report.config.dialect,
            "bridge_version": report.config.bridge_version,
            "bridge_version_evidence": report.config.bridge_version_evidence or None,
        },
        "config": _settings({**report.config.values, **report.config.withheld_values}),
        "environment": _settings({**report.config.environment, **report.config.withheld_environment}),
        "config_conflicts": [
            {"key": one.key, "values": [{"value": _plain(v.value), "source": v.source} for v in one.values]}
            for one in report.config_conflicts
        ],
        "ranks": [_rank(rank) for rank in report.ranks],
        **diagnosis_as_json(report),
        "log": None if report.log is None else log_as_json(report.log),
        "memory_snapshot": snapshot_as_json(report.memory_snapshot),
        **efficiency_as_json(report),
        "unclassified": [{"name": k.name, "kernel_ns": k.kernel_ns, "count": k.count} for k in report.unclassified],
        "capabilities": dict(sorted(report.capabilities.items())),
    }


def _plain(value: FactValue) -> Any:
    """A setting or fact as JSON; JSON has no infinity, so a float that is not finite becomes its name."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _verdict(verdict: Verdict) -> Json:
    runner_up = {"wall": verdict.runner_up_wall, "sub_wall": verdict.runner_up_sub_wall}
    return {
        "wall": verdict.wall,
        "sub_wall": verdict.sub_wall,
        "abstained": verdict.abstained,
        "reason": verdict.reason,
        "step_ms": known_ns_to_ms(verdict.step_ns),
        "runner_up": None if verdict.runner_up_wall is None else runner_up,
        "margin_fraction": verdict.margin_fraction,
        "recoverable_ms": {wall: known_ns_to_ms(ns) for wall, ns in sorted(verdict.recoverable_ns.items())},
    }


def _step_summary(step: StepSummary) -> Json:
    return {
        "source": step.source,
        "kept": step.kept,
        "dropped": [{"rank": d.rank, "index": d.index, "reason": d.reason} for d in step.dropped],
        "median_ms": known_ns_to_ms(step.median_ns),
        "min_ms": known_ns_to_ms(step.min_ns),
        "max_ms": known_ns_to_ms(step.max_ns),
        "note": step.note,
    }


def _rank(rank: RankReport) -> Json:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "gpu": rank.gpu,
        "device": rank.device,
        "input": rank.input_name,
        "median_index": rank.median_index,
        "budget": _budget(rank.budget_ns),
        "communication": {
            name: {"busy_ns": time.busy_ns, "exposed_ns": time.exposed_ns, "hidden_ns": time.hidden_ns}
            for name, time in sorted(rank.communication.items())
        },
        "gap_causes": idle_causes_as_json(rank),
        "steps": [_rank_step(step) for step in rank.steps],
    }


def _rank_step(step: RankStep) -> Json:
    return {
        "index": step.index,
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        "kept": step.kept,
        "reason": step.reason,
        "budget": _budget(step.budget_ns),
    }


_PRECEDENCE = {bucket.name: position for position, bucket in enumerate(BUCKETS)}


def _budget(budget_ns: Mapping[str, int]) -> dict[str, int]:
    """A budget in order of precedence, whatever order it was counted in."""
    return dict(sorted(budget_ns.items(), key=lambda item: (_PRECEDENCE.get(item[0], len(BUCKETS)), item[0])))


def _settings(values: Mapping[str, ConfigValue]) -> Json:
    return {key: {"value": _plain(found.value), "source": found.source} for key, found in sorted(values.items())}


def _fact(fact: Fact) -> Json:
    definition = GLOSSARY_BY_NAME.get(fact.name)
    return {
        "value": None if fact.is_missing else _plain(fact.value),
        "unit": fact.unit,
        "missing_reason": fact.missing_reason,
        "meaning": None if definition is None else definition.meaning,
        "not_the_same_as": (definition.not_the_same_as or None) if definition else None,
        "needs": [] if definition is None else list(definition.needs),
    }


def _notes(notes: tuple[Note, ...]) -> list[Json]:
    return [{"name": note.name, "text": note.text, "source": note.source} for note in notes]


def _gain(gain: Gain) -> Json:
    return {
        "low": known_ns_to_ms(gain.low),
        "likely": known_ns_to_ms(gain.likely),
        "high": known_ns_to_ms(gain.high),
        "basis": gain.basis,
        "explanation": gain.explanation,
        "cost_fraction": gain.cost_fraction,
        "cost_is_estimated": gain.cost_is_estimated,
    }


def _edits(edits: tuple[PlannedEdit, ...]) -> list[Json]:
    return [
        {
            "set": edit.key,
            "from": _plain(edit.from_value),
            "to": _plain(edit.to),
            "kind": edit.kind,
            "changes_numerics": edit.changes_numerics,
            "reason": edit.reason,
        }
        for edit in edits
    ]


def _finding(finding: Finding) -> Json:
    return {
        "rule": finding.rule,
        "title": finding.title,
        "outcome": finding.outcome,
        "wall": finding.wall,
        "sub_wall": finding.sub_wall,
        "lever": finding.lever,
        "reason": finding.reason,
        "advice": finding.advice,
        "applicability": finding.applicability,
        "missing": list(finding.missing),
        "blocked_by": _notes(finding.blocked_by),
        "confirm_first": _notes(finding.confirm_first),
        "edits": _edits(finding.edits),
        "gain_ms": _gain(finding.gain_ns),
        "why_it_matters": finding.why_it_matters,
        "how_to_verify": finding.how_to_verify,
        "side_effects": list(finding.side_effects),
        "evidence_for": _notes(finding.evidence_for),
        "evidence_against": _notes(finding.evidence_against),
    }


def _plan_step(step: PlanStep) -> Json:
    """A plan entry carries its finding's words: judged later than ``findings``, it may say other numbers."""
    finding = _finding(step.finding)
    return {
        "order": step.order,
        "rule": step.finding.rule,
        "title": step.finding.title,
        "edits": _edits(step.edits),
        "gain_ms": _gain(step.gain_ns),
        "step_ms_after": {
            "low": known_ns_to_ms(step.step_after_low_ns),
            "high": known_ns_to_ms(step.step_after_high_ns),
        },
        "unlocked_by": step.unlocked_by or None,
        **{name: finding[name] for name in _OF_THE_FINDING},
    }


_OF_THE_FINDING = (
    "wall",
    "sub_wall",
    "lever",
    "reason",
    "confirm_first",
    "why_it_matters",
    "how_to_verify",
    "side_effects",
    "evidence_for",
    "evidence_against",
)


def _overrides(overrides: Overrides) -> Json:
    return {
        "bridge_version": overrides.bridge_version,
        "bridge": list(overrides.bridge),
        "megatron_lm": list(overrides.megatron_lm),
        "env": dict(overrides.env),
        "notes": list(overrides.notes),
        "python": list(overrides.python),
    }
