"""Conditions on a comparison: ``--fail-if 'step > +3%'``.

NAME OP [+-]NUMBER[UNIT]: an expression as in rules, with a sign and a unit at its number. With a sign, or with ``%``,
the change from BEFORE to AFTER is compared; without, AFTER's own value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches

from three_walls.lib.errors import UsageError
from three_walls.lib.expressions import OPERATIONS, ORDERED, Condition, parse_expression
from three_walls.lib.fact import FactDefinition
from three_walls.lib.measurement import NUMERIC
from three_walls.report.comparison import ConditionOutcome, ConditionResult, Pair
from three_walls.report.report import Report
from three_walls.runs.compared_run import Run
from three_walls.runs.step_change import saved_ns_of
from three_walls.step.step_rows import RankReport
from three_walls.tables.buckets import BUCKETS, COMMUNICATION_CATEGORIES, Group

_AMOUNT = re.compile(r"(?:(?P<sign>[+-])\s*)?(?<![\d.])(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|[A-Za-z/]*)$")
"""How a number ends a condition, in addition to what expressions allow."""
_UNITS: dict[str, dict[str, float]] = {
    "ns": {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9},
    "bytes": {"B": 1, "MiB": 2**20, "GiB": 2**30, "MB": 1e6, "GB": 1e9},
    "bytes_per_s": {"B/s": 1, "GB/s": 1e9},
    "fraction": {"": 1, "pp": 0.01},
}
"""Unit of a quantity -> how it may be written, with the factor. Other quantities are written without a unit."""
_PARTS = ("busy", "exposed", "hidden")
_MEMORY_PEAKS = ("log_peak_memory_bytes", "memory_peak_bytes", "snapshot_peak_allocated_bytes", "driver_peak_bytes")
"""Facts of the memory peak, the most reliable first."""
_EXPECTED = "expected NAME OP [+-]NUMBER[UNIT], as in 'step > +3%', 'ep.exposed_fraction > 0.3' or 'idle > +5 ms'"
_SHOWN_MATCHES = 3


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition on a comparison that was read."""

    expression: str
    name: str
    unit: str
    """Unit of the quantity."""
    operator: str
    limit: float
    """In that unit, or a fraction of BEFORE's value."""
    is_change: bool
    is_relative: bool


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of one run. ``spread``: half of what it varies by over the kept steps; None where that is not known."""

    value: float | None
    reason: str = ""
    spread: float | None = None


def read_gate(expression: str, definitions: Mapping[str, FactDefinition]) -> Gate:
    """The condition that ``expression`` states. ``definitions``: all facts, by name.

    Raises UsageError, which states what was expected, and near names for an unknown one.
    """
    condition, sign, suffix = _parse(expression)
    name, unit = condition.name, _unit_of(condition.name, definitions)
    if unit is None:
        names = list_quantities(definitions)
        near = get_close_matches(name, names, n=_SHOWN_MATCHES, cutoff=0.5)
        hint = f"near names: {', '.join(near)}" if near else f"as {', '.join(names[:4])}, a bucket or a numeric fact"
        raise UsageError(f"--fail-if: expected the name of a quantity, found {name} ({hint})")
    assert isinstance(condition.value, float)  # as _parse wrote it
    is_relative, number = suffix == "%", -condition.value if sign == "-" else condition.value
    if is_relative:
        if unit == "fraction" and not sign:
            raise UsageError(
                f"--fail-if: {name} is a fraction: write {number / 100:g} for a share of {number:g}%, +{number:g}% for "
                f"a relative change, or +{number:g}pp for a change in percentage points; found {expression!r}"
            )
        factor = 0.01
    else:
        factors = _UNITS.get(unit, {"": 1})
        if suffix not in factors:
            allowed = ", ".join(factor or "no unit" for factor in factors)
            raise UsageError(f"--fail-if: {name} is written with {allowed}, or %; found {expression!r}")
        factor = factors[suffix]
    is_change = is_relative or bool(sign)
    return Gate(expression.strip(), name, unit, condition.operator, number * factor, is_change, is_relative)


def _parse(expression: str) -> tuple[Condition, str, str]:
    """The condition without the sign and the unit of its number, and these; raises UsageError."""
    text = expression.strip()
    if amount := _AMOUNT.search(text):
        with suppress(ValueError):
            condition = parse_expression(f"{text[: amount.start()]} {float(amount['number'])!r}")
            if isinstance(condition, Condition) and condition.operator in ORDERED:
                return condition, amount["sign"] or "", amount["unit"]
    raise UsageError(f"--fail-if: {_EXPECTED}, found {expression!r}")


def list_quantities(definitions: Mapping[str, FactDefinition]) -> list[str]:
    """Every name that a condition may have."""
    parts = [f"{name}.{part}" for name in ("ep", *COMMUNICATION_CATEGORIES) for part in (*_PARTS, "exposed_fraction")]
    buckets = [bucket.name for bucket in BUCKETS]
    groups = [group.value for group in Group]
    facts = [name for name, definition in definitions.items() if definition.unit in NUMERIC]
    return ["step", "traced_step", "memory.peak", *groups, *buckets, *parts, *facts]


def judge_gate(gate: Gate, before: Run, after: Run, pair: Pair, *, strict: bool) -> ConditionResult:
    """Whether ``gate`` holds for ``after``. ``strict``: differences within the spread count too."""
    was, now = _find_values(gate.name, before, after, pair)

    def result(outcome: ConditionOutcome, reason: str) -> ConditionResult:
        return ConditionResult(gate.expression, pair.after.name, outcome, gate.unit, was.value, now.value, reason)

    if now.value is None or (gate.is_change and was.value is None):
        unknown = [(name, value) for name, value in (("BEFORE", was), ("AFTER", now)) if value.value is None]
        unknown = unknown if gate.is_change else unknown[-1:]
        reasons = "; ".join(f"{name}: {value.reason}" for name, value in unknown)
        return result(ConditionOutcome.UNKNOWN, f"{gate.name} is not known ({reasons})")
    compared, spread = now.value, None
    if gate.is_change:
        assert was.value is not None
        compared = now.value - was.value
        spread = None if was.spread is None or now.spread is None else was.spread + now.spread
        if gate.is_relative and was.value:
            compared, spread = compared / abs(was.value), None if spread is None else spread / abs(was.value)
        elif gate.is_relative and compared:
            return result(ConditionOutcome.UNKNOWN, f"{gate.name} is 0 in BEFORE: give an absolute change")
    if not OPERATIONS[gate.operator](compared, gate.limit):
        return result(ConditionOutcome.DOES_NOT_HOLD, "")
    # A condition that asks for an improvement is not met by a difference that is none.
    asks_for_change = gate.limit < 0 if gate.operator in (">", ">=") else gate.limit > 0
    if spread is not None and abs(compared) <= spread and not strict and not asks_for_change:
        return result(ConditionOutcome.WITHIN_SPREAD, "the difference is no larger than the spread of the steps")
    known = "" if spread is not None or not gate.is_change else "its spread is not known"
    return result(ConditionOutcome.HOLDS, known)


def _unit_of(name: str, definitions: Mapping[str, FactDefinition]) -> str | None:
    """Unit of the quantity ``name``; None for no quantity."""
    if name in {"step", "traced_step", *(group.value for group in Group), *(bucket.name for bucket in BUCKETS)}:
        return "ns"
    if name == "memory.peak":
        return "bytes"
    definition = definitions.get(_fact_of(name))
    if definition is not None:
        return definition.unit if definition.unit in NUMERIC else None
    subject, _, part = name.partition(".")
    if subject in COMMUNICATION_CATEGORIES and part in _PARTS:
        return "ns"
    return "fraction" if subject in COMMUNICATION_CATEGORIES and part == "exposed_fraction" else None


def _fact_of(name: str) -> str:
    """The fact that ``name`` may stand for: ``ep.exposed`` is the fact ``ep_exposed_ns``."""
    subject, _, part = name.partition(".")
    if subject == "ep" and part:
        return f"ep_{part}_ns" if part in _PARTS else f"ep_{part}"
    return name


def _find_values(name: str, before: Run, after: Run, pair: Pair) -> tuple[_Value, _Value]:
    reports = before.report, after.report
    if name == "step":
        step, saved_ns = pair.step, saved_ns_of(pair.step)
        if step.before_ns is None or saved_ns is None:
            return _Value(None, step.basis_note), _Value(None, step.basis_note)
        half = None if step.spread_ns is None else step.spread_ns / 2
        return _Value(step.before_ns, spread=half), _Value(step.before_ns - saved_ns, spread=half)
    if name == "memory.peak":
        common = next((name for name in _MEMORY_PEAKS if None not in [each.facts.number(name) for each in reports]), "")
        if not common:
            reason = "not measured in the same way in both (the logs print it)"
            peaks = map(after.report.facts.number, _MEMORY_PEAKS)
            return _Value(None, reason), _Value(next((peak for peak in peaks if peak is not None), None), reason)
        return _find_fact(before.report, common), _find_fact(after.report, common)
    return _find_value(name, before), _find_value(name, after)


def _find_fact(report: Report, name: str) -> _Value:
    fact = report.facts.get(name)
    return _Value(report.facts.number(name), fact.missing_reason or "it is not a number")


def _find_value(name: str, run: Run) -> _Value:
    """A time of the traced step, or a fact."""
    rank = run.report.representative_rank
    buckets = [bucket.name for bucket in BUCKETS if name in (bucket.name, bucket.group.value)]
    subject, _, part = name.partition(".")
    is_class = subject in COMMUNICATION_CATEGORIES and bool(part)
    if not buckets and name != "traced_step" and not is_class:
        return _find_fact(run.report, _fact_of(name))
    if rank is None or not run.traced_step_ns:
        return _Value(None, "no step was traced and kept" if run.has_trace else "no trace was given")
    if name == "traced_step":
        return _Value(run.traced_step_ns, spread=_half_range(sum(budget.values()) for budget in _kept_budgets(rank)))
    if buckets:
        spread = _half_range(sum(budget.get(bucket, 0) for bucket in buckets) for budget in _kept_budgets(rank))
        return _Value(sum(rank.budget.get(bucket, 0) for bucket in buckets), spread=spread)
    time = rank.communication.get(subject)
    if part == "exposed_fraction":
        return _Value(time.exposed_ns / run.traced_step_ns if time else 0.0)
    return _Value(getattr(time, f"{part}_ns") if time else 0)


def _kept_budgets(rank: RankReport) -> Iterator[Mapping[str, int]]:
    return (step.budget for step in rank.steps if step.kept)


def _half_range(values: Iterator[int]) -> float | None:
    """Half of what ``values`` of the kept steps range over; None with fewer than two."""
    known = list(values)
    return (max(known) - min(known)) / 2 if len(known) > 1 else None
