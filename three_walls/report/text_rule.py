"""One rule as plain text, for a person who wants to know why it recommends its edits, or does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from three_walls.advice.format.rule import Edit, Evidence, GainModel, Requirement, Rule, WarningRule
from three_walls.lib.expressions import Clause, Junction
from three_walls.lib.text import format_name, format_setting
from three_walls.replay.transformation import FromFact, Level, Levels, Transformation
from three_walls.report.formats import format_cost


def describe_rule(rule: Rule) -> str:
    """Everything that the rule file contains, in the order of a reader's questions; no trailing newline."""
    return "\n".join(_lines(rule))


def describe_warning(warning: WarningRule) -> str:
    """When a warning is given, on one line."""
    unless = f" unless {_conditions(warning.unless)}" if warning.unless else ""
    return f"{_conditions(warning.when)}{unless}"


def _lines(rule: Rule) -> Iterator[str]:
    wall = f"{rule.wall} ({rule.sub_wall})" if rule.sub_wall else str(rule.wall)
    yield f"{rule.id}: {rule.title}"
    yield f"wall {wall}, {rule.applicability}" + (f", lever {rule.lever}" if rule.lever else "")
    yield from _section("Looks for", [rule.what_it_looks_for])
    yield from _section("Why it matters", [rule.why_it_matters])
    yield from _section("Applies where", map(str, rule.applies_to))
    yield from _section("Needed when", map(str, rule.when))
    yield from _section("Requires", (line for requirement in rule.requires for line in _requirement(requirement)))
    yield from _section("Edits", map(_edit, rule.edits))
    yield from _section("What to do", [advice.text for advice in rule.advice])
    yield from _section("Gain", _gain(rule.gain))
    yield from _section("In a replay of the step", _replay(rule.gain))
    yield from _section("Side effects", rule.side_effects)
    yield from _section("How to verify", [rule.how_to_verify])
    yield from _section("Evidence for", map(_evidence, rule.evidence_for))
    yield from _section("Evidence against", map(_evidence, rule.evidence_against))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield f"\n{title}"
    for line in found:
        yield f"  {line}"


def _conditions(conditions: Sequence[Clause]) -> str:
    return str(conditions[0] if len(conditions) == 1 else Junction("and", tuple(conditions)))


def _requirement(requirement: Requirement) -> Iterator[str]:
    checks = _conditions(requirement.checks)
    confirm = f"confirm that {requirement.confirm}" if requirement.confirm else ""
    yield f"{requirement.name}: {'; else '.join(filter(None, (checks, confirm)))}"
    yield f"  reason: {requirement.reason} ({requirement.source})"
    for edit in requirement.fix:
        yield f"  fix: {_edit(edit)}"


def _edit(edit: Edit) -> str:
    target = f"the value of {edit.to_fact}" if edit.to_fact else format_setting(edit.to)
    sentences = {"set": f"set {edit.key} to {target}", "add": f"add {target} to {edit.key}"}
    change = sentences.get(edit.operation, f"remove {target} from {edit.key}")
    only_if = f" if {_conditions(edit.only_if)}" if edit.only_if else ""
    return f"{change}{only_if}" + (f": {edit.reason}" if edit.reason else "")


def _gain(gain: GainModel) -> Iterator[str]:
    for term in gain.terms:
        high = f"1 - {term.high_one_minus_fact}" if term.high_one_minus_fact else _percent(term.high)
        if term.likely is None:
            yield f"up to {high} of {term.pool}"
        else:
            yield f"{_percent(term.low)} to {high} of {term.pool}, likely {_percent(term.likely)}"
    for limit in filter(None, (gain.hidden_under, gain.at_most)):
        yield f"no more than {limit}"
    if gain.added:
        yield f"less {gain.added}"
    if gain.cost_fraction is not None:
        yield f"frees memory, {format_cost(gain.cost_fraction, gain.cost_is_estimated)}"
    yield f"{format_name(gain.basis)}: {gain.explanation}"


def _replay(gain: GainModel) -> Iterator[str]:
    for transformation in gain.replay:
        only_if = f" if {_conditions(transformation.only_if)}" if transformation.only_if else ""
        selected = "; ".join(_list_selected(transformation))
        yield f"{format_name(transformation.action)}{f' {selected}' if selected else ''}{only_if}"
        for name, unused in _PARAMETERS.items():
            shown = _parameter(transformation, name)
            if shown != unused:
                yield f"  {format_name(name)} {shown}"
        source = f" ({transformation.source})" if transformation.source else ""
        yield f"  reason: {transformation.reason}{source}"
    if gain.chosen_by:
        yield f"chosen by: {', '.join(gain.chosen_by)}"
    if gain.no_replay:
        yield f"not replayed: {gain.no_replay}"


_PARAMETERS = {
    "time": "1",
    "host": "1",
    "share": "1",
    "slowdown": "1",
    "factor": "1",
    "launches": "1",
    "overhead_us": "0",
    "added_time": "0",
    "added_kernels": "0",
}
"""Parameters of a transformation, with what they are where a rule does not give them."""


def _list_selected(transformation: Transformation) -> Iterator[str]:
    select = transformation.select
    for name in ("categories", "work", "modules", "directions"):
        if words := getattr(select, name):
            yield f"{name} {', '.join(words)}"
    yield from (f"{name} {text}" for name, text in (("kernels", select.kernels), ("calls", select.calls)) if text)
    if select.inner_layers:
        yield "inner layers"
    yield from (f"rank {part.fact}" for part in transformation.from_facts if part.parameter == "ranks")


def _parameter(transformation: Transformation, name: str) -> str:
    """``0.6, likely 0.4, 0.15``: at the smallest gain, the likely one and the largest; a single number if all agree."""
    value = getattr(transformation, name)
    from_facts = {part.level: part for part in transformation.from_facts if part.parameter == name}
    if None in from_facts:
        return _from_fact(from_facts[None])
    if not isinstance(value, Levels):
        return f"{value:g}"
    low, likely, high = (
        _from_fact(from_facts[level]) if level in from_facts else f"{getattr(value, level):g}" for level in Level
    )
    return low if low == likely == high else f"{low} at the smallest gain, likely {likely}, {high} at the largest"


def _from_fact(part: FromFact) -> str:
    if part.one_minus:
        return f"1 - {part.fact}"
    over = part.over if isinstance(part.over, str) else f"{part.over:g}"
    return part.fact if part.over is None else f"{part.fact} / {over}"


def _percent(fraction: float) -> str:
    return f"{fraction * 100:g}%"


def _evidence(evidence: Evidence) -> str:
    return f"{evidence.claim} ({evidence.source})"
