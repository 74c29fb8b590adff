"""The settings that differ, and what the plan of BEFORE predicted for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from three_walls.advice.finding import FREES_MEMORY, Finding, Gain, PlannedEdit, PlanStep
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.report.comparison import SettingChange, StepChange
from three_walls.report.report import Report
from three_walls.report.tuning_rows import Judgement, Trial, TriedEntry
from three_walls.runs.comparability import comparison_rules
from three_walls.runs.compared_run import Run
from three_walls.runs.step_change import saved_ns_of

_LAUNCH = "environment"
"""Source of a variable that the trace recorded."""


def compare_settings(before: Run, after: Run) -> tuple[SettingChange, ...]:
    """Settings and environment variables with different values, those of BEFORE's plan first, then by name."""
    changes = [
        *_compare_values(before.report, after.report, "config"),
        *_compare_values(before.report, after.report, "env"),
    ]
    planned = {step.rule: step.order for step in before.report.plan}
    last = len(planned) + 1

    def place(change: SettingChange) -> tuple[bool, int, str, str]:
        order = min((planned.get(rule, last) for rule in change.rules), default=last)
        return change.follows, order, change.kind, change.key

    return tuple(sorted(changes, key=place))


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
    stated = [entry for entry in plan if entry.rule in rules]
    return _judge(stated, stated, (), (), step)


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
    lows, highs = [low for low, _ in bounds if low is not None], [high for _, high in bounds if high is not None]
    low_ns = sum(lows) if bounds and len(lows) == len(bounds) else None
    high_ns = sum(highs) if bounds and len(highs) == len(bounds) else None
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


def _bounds_of(gain: Gain) -> tuple[int | None, int | None]:
    if gain.basis == FREES_MEMORY or gain.high is None:
        return None, None
    return gain.low or 0, gain.high


def _compare_values(before: Report, after: Report, kind: str) -> Iterator[SettingChange]:
    configs = before.config, after.config
    values = [_values_of(config, kind) for config in configs]
    is_complete = kind == "env" and all(map(_is_environment_complete, configs))
    withheld = {
        name for config in configs for name in (*config.withheld_values, *config.withheld_environment)
    }  # given, to a value that is not shown
    unset = ConfigValue(None, _LAUNCH)
    for name in sorted(values[0].keys() | values[1].keys()):
        found = [mapping.get(name, unset if is_complete else None) for mapping in values]
        if found[0] is None or found[1] is None or found[0].value == found[1].value or name in withheld:
            continue
        if comparison_rules().ignores(name):
            continue
        findings = [finding for finding in before.findings if _proposes(finding.edits, kind, name, found[1])]
        rules = _list_rules(before, findings)
        planned = {step.rule for step in before.plan}
        note = "" if any(rule in planned for rule in rules) else _describe_finding(findings)
        follows = not found[0].is_stated and not found[1].is_stated
        yield SettingChange(name, kind, found[0].value, found[1].value, follows, rules, note)


def _is_environment_complete(config: RunConfig) -> bool:
    """Whether the trace recorded the launch environment, so that other variables were not set. A config names a few."""
    return any(value.is_stated_by(_LAUNCH) for value in config.environment.values())


def _list_rules(before: Report, findings: Sequence[Finding]) -> tuple[str, ...]:
    proposing = {finding.rule for finding in findings}
    planned = [step.rule for step in before.plan if step.rule in proposing]
    return (*planned, *sorted(proposing.difference(planned)))


def _describe_finding(findings: Sequence[Finding]) -> str:
    """Why BEFORE's plan does not have the edit; of several rules the first, by id."""
    for finding in sorted(findings, key=lambda finding: finding.rule):
        return f"{finding.rule}: {finding.outcome.value.replace('_', ' ')}. {finding.reason}"
    return ""


def _proposes(edits: Sequence[PlannedEdit], kind: str, key: str, value: ConfigValue) -> bool:
    return any(edit.kind == kind and edit.key == key and edit.to == value.value for edit in edits)


def _values_of(config: RunConfig, kind: str) -> Mapping[str, ConfigValue]:
    return config.environment if kind == "env" else config.values


def _all_edits(entry: PlanStep) -> tuple[PlannedEdit, ...]:
    """The edits of the entry in the plan, and those that it has alone."""
    return (*entry.edits, *entry.differing_edits)


def _settings_set_by(entry: PlanStep) -> set[tuple[str, str]]:
    """Kind and key of the settings that the entry edits, and of what its overrides set besides."""
    found = {(edit.kind, edit.key) for edit in _all_edits(entry)}
    if entry.overrides is not None:
        found |= {("config", line.partition("=")[0].rpartition(".")[2]) for line in entry.overrides.bridge}
        found |= {("env", name) for name in entry.overrides.env}
    return found


def _settings_of(entry: PlanStep, settings: Sequence[SettingChange]) -> list[SettingChange]:
    """The differing settings that have a value which the entry sets."""
    return [
        change
        for change in settings
        if any(
            edit.kind == change.kind and edit.key == change.key and edit.to == change.after
            for edit in _all_edits(entry)
        )
    ]


def _is_whole(entry: PlanStep, config: RunConfig) -> bool:
    """Whether ``config`` has every value that the entry sets, in the plan or alone."""
    for edit in entry.edits:
        found = _values_of(config, edit.kind).get(edit.key)
        value = found.value if found else None
        alone = [other.to for other in entry.differing_edits if (other.kind, other.key) == (edit.kind, edit.key)]
        if (found is None and edit.to is not None) or value not in (edit.to, *alone):
            return False
    return True
