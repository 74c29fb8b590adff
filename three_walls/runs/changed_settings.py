"""The settings that differ, and what the plan of BEFORE predicted for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from three_walls.advice.finding import FREES_MEMORY, Finding, Gain, PlannedEdit, PlanStep
from three_walls.lib.fact import FactValue
from three_walls.lib.text import format_name
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.report.comparison import Judgement, SettingChange, StepChange, Trial, TriedEntry
from three_walls.report.report import Report
from three_walls.runs.comparability import comparison_rules
from three_walls.runs.compared_run import Run
from three_walls.runs.step_change import saved_ns_of

_LAUNCH = "environment"
"""Source of a variable that the trace recorded."""


def compare_settings(before: Run, after: Run) -> tuple[SettingChange, ...]:
    """Settings and environment variables with different values, those of BEFORE's plan first, then by name."""
    changes = [change for kind in ("config", "env") for change in _compare_values(before.report, after.report, kind)]
    planned = {step.rule: step.order for step in before.report.plan}
    last = len(planned) + 1

    def sort_key(change: SettingChange) -> tuple[bool, int, str, str]:
        order = min((planned.get(rule, last) for rule in change.rules), default=last)
        return change.follows, order, change.kind, change.key

    return tuple(sorted(changes, key=sort_key))


def describe_known_settings(before: Run, after: Run) -> str:
    """How far the settings of both runs are known, in a sentence; empty where nothing limits the comparison."""
    configs = before.report.config, after.report.config
    if not configs[0].values or not configs[1].values:
        unknown = [name for name, config in zip(("BEFORE", "AFTER"), configs, strict=True) if not config.values]
        return f"The settings of {' and '.join(unknown)} are not known: give config=FILE or log=FILE with the run."
    ignores = comparison_rules().ignores
    names = [
        {key for key, value in config.values.items() if value.is_stated and not ignores(key)} for config in configs
    ]
    alone = [len(names[0] - configs[1].values.keys()), len(names[1] - configs[0].values.keys())]
    parts = [f"{count} of {name}" for count, name in zip(alone, ("BEFORE", "AFTER"), strict=True) if count]
    notes = [f"Settings known in one run alone are not compared: {' and '.join(parts)}"] if parts else []
    if not all(map(_is_environment_complete, configs)):
        notes.append("Environment variables are compared where both runs state them: not both recorded all")
    return " ".join(f"{note}." for note in notes)


def judge_trial(
    plan: Sequence[PlanStep], settings: Sequence[SettingChange], after: RunConfig, step: StepChange
) -> Trial:
    """What ``plan`` predicted for ``settings``, against what was measured."""
    made = {(change.kind, change.key) for change in settings if not change.follows}
    applied = [entry for entry in plan if entry.edits and _settings_of(entry, settings)]
    whole = [entry for entry in applied if _is_whole(entry, after)]
    covered = {setting for entry in whole for setting in _settings_set_by(entry)}
    others = tuple(sorted(key for kind, key in made if (kind, key) not in covered))
    return _judge(applied, whole, others, settings, step)


def judge_stated(plan: Sequence[PlanStep], rules: Collection[str], step: StepChange) -> Trial:
    """What ``plan`` predicted for the entries ``rules``, which the user states to be the only change."""
    applied = [entry for entry in plan if entry.rule in rules]
    return _judge(applied, applied, (), (), step)


def _judge(
    applied: Sequence[PlanStep],
    whole: Sequence[PlanStep],
    others: tuple[str, ...],
    settings: Sequence[SettingChange],
    step: StepChange,
) -> Trial:
    saved_ns, spread_ns = saved_ns_of(step), step.spread_ns or 0
    is_alone = len(whole) == 1 and not others

    def describe(entry: PlanStep) -> TriedEntry:
        measured_ns = saved_ns if is_alone and entry in whole else None
        return TriedEntry(
            order=entry.order,
            rule=entry.rule,
            title=entry.finding.title,
            settings=tuple(change.key for change in _settings_of(entry, settings)),
            is_whole=entry in whole,
            predicted=entry.gain_ns,
            measured_ns=measured_ns,
            judgement=judge_gain(*_bounds_of(entry.gain_ns), measured_ns, spread_ns),
        )

    bounds = [_bounds_of(entry.gain_ns) for entry in whole]
    low_ns, high_ns = _sum_known([low for low, _ in bounds]), _sum_known([high for _, high in bounds])
    return Trial(
        entries=tuple(describe(entry) for entry in applied),
        other_settings=others,
        predicted_low_ns=low_ns,
        predicted_high_ns=high_ns,
        measured_ns=saved_ns,
        judgement=Judgement.UNKNOWN if others else judge_gain(low_ns, high_ns, saved_ns, spread_ns),
    )


def judge_gain(low_ns: int | None, high_ns: int | None, measured_ns: int | None, spread_ns: int) -> Judgement:
    """``measured_ns`` against a predicted range; outside counts what is outside by more than ``spread_ns``."""
    if low_ns is None or high_ns is None or measured_ns is None:
        return Judgement.UNKNOWN
    if measured_ns < low_ns - spread_ns:
        return Judgement.BELOW
    return Judgement.ABOVE if measured_ns > high_ns + spread_ns else Judgement.INSIDE


def _sum_known(values: Sequence[int | None]) -> int | None:
    """The sum; None where one is not known, or where there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _bounds_of(gain: Gain) -> tuple[int | None, int | None]:
    if gain.basis == FREES_MEMORY or gain.high is None:
        return None, None
    return gain.low or 0, gain.high


def _compare_values(before: Report, after: Report, kind: str) -> Iterator[SettingChange]:
    configs = before.config, after.config
    values = [values_of(config, kind) for config in configs]
    is_complete = kind == "env" and all(map(_is_environment_complete, configs))
    redacted = {name for config in configs for name in (*config.withheld_values, *config.withheld_environment)}
    unset = ConfigValue(None, _LAUNCH)
    for name in sorted(values[0].keys() | values[1].keys()):
        old, new = (mapping.get(name, unset if is_complete else None) for mapping in values)
        if old is None or new is None or old.value == new.value or name in redacted or comparison_rules().ignores(name):
            continue
        findings = [finding for finding in before.findings if _proposes(finding.edits, kind, name, new.value)]
        proposing = {finding.rule for finding in findings}
        planned = [
            step.rule
            for step in before.plan
            if step.rule in proposing or _proposes(_all_edits(step), kind, name, new.value)
        ]
        rules = (*planned, *sorted(proposing.difference(planned)))
        note = "" if planned else _describe_finding(findings)
        yield SettingChange(name, kind, old.value, new.value, not old.is_stated and not new.is_stated, rules, note)


def _is_environment_complete(config: RunConfig) -> bool:
    """Whether the trace recorded the launch environment, so that other variables were not set. A config names a few."""
    return any(value.is_stated_by(_LAUNCH) for value in config.environment.values())


def _describe_finding(findings: Sequence[Finding]) -> str:
    """Why BEFORE's plan does not have the edit; of several rules the first, by id."""
    if not findings:
        return ""
    first = min(findings, key=lambda finding: finding.rule)
    return f"{first.rule}: {format_name(first.outcome.value)}. {first.reason}"


def _proposes(edits: Sequence[PlannedEdit], kind: str, key: str, value: FactValue) -> bool:
    return any(edit.kind == kind and edit.key == key and edit.to == value for edit in edits)


def values_of(config: RunConfig, kind: str) -> Mapping[str, ConfigValue]:
    return config.environment if kind == "env" else config.values


def _all_edits(entry: PlanStep) -> tuple[PlannedEdit, ...]:
    """The edits of the entry in the plan, and those that it has alone."""
    return (*entry.edits, *entry.differing_edits)


def _settings_set_by(entry: PlanStep) -> set[tuple[str, str]]:
    """Kind and key of the settings that the entry edits, and of what its overrides set besides."""
    settings = {(edit.kind, edit.key) for edit in _all_edits(entry)}
    if entry.overrides is not None:
        settings |= {("config", line.partition("=")[0].rpartition(".")[2]) for line in entry.overrides.bridge}
        settings |= {("env", name) for name in entry.overrides.env}
    return settings


def _settings_of(entry: PlanStep, settings: Sequence[SettingChange]) -> list[SettingChange]:
    """The differing settings that have a value which the entry sets."""
    return [change for change in settings if _proposes(_all_edits(entry), change.kind, change.key, change.after)]


def _is_whole(entry: PlanStep, config: RunConfig) -> bool:
    """Whether ``config`` has every value that the entry sets, in the plan or alone."""
    for edit in entry.edits:
        known = values_of(config, edit.kind).get(edit.key)
        value = known.value if known else None
        alone = [other.to for other in entry.differing_edits if (other.kind, other.key) == (edit.kind, edit.key)]
        if (known is None and edit.to is not None) or value not in (edit.to, *alone):
            return False
    return True
