"""Answers ``what if``: what the asked changes mean for the step, by the rules and the facts of the run, and the step
with them.

A setting stands for the transformations of the rule that proposes it. One that only chooses how such an edit works is
taken together with that edit. How many layers are recomputed in full may be any number, and modules may take the place
of full recompute (``advice/plan/recomputed_layers.py``). A bandwidth, a factor or a dropped kernel is a transformation
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, nextafter
from types import MappingProxyType

from three_walls.advice.edits import fact_of, target_of
from three_walls.advice.format.conditions import evaluate_all, list_conditions, same, that_are
from three_walls.advice.format.rule import Rule
from three_walls.advice.judge import failing_requirements
from three_walls.advice.plan.recomputed_layers import GRANULARITY, MODULES, change_recomputed_layers, find_module_rules
from three_walls.advice.plan.replays import Replays
from three_walls.advice.what_if import Changes, Question, WhatIf
from three_walls.advice.wording import explain
from three_walls.facts import fact_thresholds
from three_walls.facts.fact_rows import Prediction
from three_walls.lib.errors import UsageError
from three_walls.lib.expressions import Condition, Truth, list_names
from three_walls.lib.fact import FactSheet, FactValue
from three_walls.lib.load_documents import suggest
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import CATEGORY_GROUPS, Action, Levels, Predictor, Selection, Transformation
from three_walls.tables.buckets import CATEGORIES, COMMUNICATION_CATEGORIES, TOKEN_EXCHANGES
from three_walls.tables.config_values import show

HOST, NCCL = "host", "nccl"

SCALABLE = (HOST, NCCL, *CATEGORY_GROUPS, *CATEGORIES)
"""What a factor can apply to."""

_NCCL_KERNELS = "(?i)nccl"


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A run whose step can be replayed with changes."""

    rules: tuple[Rule, ...]
    facts: FactSheet
    predictor: Predictor

    def with_edits(
        self,
        settings: Mapping[str, ConfigData] = MappingProxyType({}),
        *,
        scales: Mapping[str, float] = MappingProxyType({}),
        dropped_kernels: Sequence[str] = (),
        network_bytes_per_s: float | None = None,
    ) -> WhatIf:
        """The step with changes, as ``three-walls whatif`` predicts it.

        - ``settings``: edits that some rule proposes, and with them what chooses how they work, by Megatron Core name;
          ``env.<VARIABLE>`` for variables.
        - ``scales``: factor on the time of ``host``, ``nccl``, a group of buckets, or a bucket.
        - ``dropped_kernels``: regular expressions, searched in kernel names.
        - ``network_bytes_per_s``: bandwidth of the network per GPU and direction.

        Raises UsageError for what no rule and no replay knows.
        """
        named = {name if name.startswith("env.") else f"config.{name}": value for name, value in settings.items()}
        question = Question(named, tuple(scales.items()), tuple(dropped_kernels), network_bytes_per_s)
        return answer(question, self)


def answer(question: Question, run: ReplayedRun) -> WhatIf:
    """The step of ``run`` with the changes of ``question``. Raises UsageError for what no rule and no replay knows."""
    predictor = run.predictor
    changes = find_changes(question, run.rules, run.facts, predictor)
    source = describe_step_source(run.facts)
    if predictor.missing_reason:
        return WhatIf(_step_without_replay(run.facts), source, None, predictor.missing_reason, notes=changes.notes)
    now = predictor.step_ns
    step = now if not now.because_unknown else None
    if reason := "; ".join(changes.unknown) or now.because_unknown:
        return WhatIf(step, source, None, reason, notes=changes.notes)
    after = predictor.predict(changes.transformations)
    notes = (*changes.notes, *_explain(changes.transformations, predictor))
    if after.because_unknown:
        return WhatIf(step, source, None, after.because_unknown, notes=notes)
    return WhatIf(
        step,
        source,
        after,
        budget=_fit(predictor.budget_after(()), now.likely_ns),
        budget_after=_fit(predictor.budget_after(changes.transformations), after.likely_ns),
        limits_after=predictor.limits_after(changes.transformations),
        notes=notes,
    )


def _fit(budget: Mapping[str, int], step_ns: int) -> dict[str, int]:
    """``budget`` in proportion, so that its buckets sum to ``step_ns`` exactly.

    A log's step differs from the replayed one by what the estimate of the profiler's cost cannot explain. As in a
    prediction, that is spread over the whole step.
    """
    total_ns = sum(budget.values())
    if not total_ns:
        return dict(budget)
    fitted, reached_ns, owned_ns = {}, 0, 0
    for bucket, ns in budget.items():
        owned_ns += ns
        until_ns = owned_ns * step_ns // total_ns
        fitted[bucket] = until_ns - reached_ns
        reached_ns = until_ns
    return fitted


def describe_step_source(facts: FactSheet) -> str:
    """Where the length of the unprofiled step comes from."""
    if facts.number("unprofiled_step_ns") is not None:
        return "median of the log's unprofiled steps"
    return "the captured step without the estimated cost of the profiler; a log (--log) would measure it"


def _step_without_replay(facts: FactSheet) -> Prediction | None:
    logged_ns = facts.number("unprofiled_step_ns")
    return None if logged_ns is None else Prediction(round(logged_ns), round(logged_ns), round(logged_ns))


def _explain(transformations: Iterable[Transformation], predictor: Predictor) -> tuple[str, ...]:
    return tuple(reason for change in transformations if (reason := predictor.explain(change)))


def find_changes(question: Question, rules: Sequence[Rule], facts: FactSheet, predictor: Predictor) -> Changes:
    """What ``question`` changes in the step. Raises UsageError for a setting that no rule proposes, or a wrong name."""
    replays = Replays(predictor)
    choosing = _find_choosing(question.settings, rules, facts)
    facts = facts.with_values(choosing)
    parts = [_set(name, question.settings, rules, facts, replays) for name in question.settings if name not in choosing]
    parts += [_scale(name, factor) for name, factor in question.scales]
    parts += [Changes((_drop(kernels),)) for kernels in question.dropped_kernels]
    if question.network_bytes_per_s is not None:
        parts.append(_change_network(question.network_bytes_per_s, facts))
    transformations = (change for part in parts for change in part.transformations)
    return Changes(
        tuple(dict.fromkeys(transformations)),  # two settings of one rule change the step once
        tuple(dict.fromkeys(reason for part in parts for reason in part.unknown)),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _find_choosing(settings: Mapping[str, ConfigData], rules: Sequence[Rule], facts: FactSheet) -> dict[str, FactValue]:
    """Those of ``settings`` that choose how another of them works, which changes the run."""
    return {
        name: value
        for rule in rules
        for name, value in settings.items()
        if name in rule.gain.chosen_by
        and not _is_set(name, value, facts)
        and any(
            other in settings and _sets(other, to, other, settings[other]) and not _is_set(other, to, facts)
            for other, to in _targets(rule, facts)
        )
    }


def _is_set(name: str, value: ConfigData, facts: FactSheet) -> bool:
    current = facts.get(name)
    return not current.is_missing and (same(current.value, value) or (value is False and current.value is None))


def _set(
    name: str, settings: Mapping[str, ConfigData], rules: Sequence[Rule], facts: FactSheet, replays: Replays
) -> Changes:
    """The transformations of the rules that propose this one of ``settings``: of rules with the same lever, one.

    Rules that contradict no other setting that was asked come before those that do, those that propose more settings
    that were asked before those that propose fewer, rules for this run before others, those with a replay before those
    without, and those whose symptom is there before those whose symptom is not.
    """
    value = settings[name]
    shown = f"{name.partition('.')[2]}={show(value)}"
    if _is_set(name, value, facts):
        return Changes(notes=(f"{shown} is set already: it changes nothing.",))
    recomputed = change_recomputed_layers(name, shown, settings, rules, facts)
    if recomputed is not None:
        return recomputed
    recomputed = _recompute_modules(name, settings, rules, facts, replays)
    if recomputed is not None:
        return recomputed
    proposing = _find_proposing(name, value, rules, facts)
    if not proposing:
        raise UsageError(_describe_unknown_setting(name, shown, rules, facts))
    if all(_needs_another(rule, name, facts) for rule in proposing):
        # A rule for the value that is set now knows what goes with it, also where it proposes another value here.
        for_this = [rule for rule in rules if not _needs_another(rule, name, facts) and _may_set(rule, name, value)]
        proposing = for_this or proposing
    fitting = [rule for rule in proposing if not _contradicts(rule, settings, facts)] or proposing
    is_foreign = {rule.id: evaluate_all(rule.applies_to, facts) is Truth.FAILS for rule in fitting}
    in_order = sorted(
        fitting,
        key=lambda rule: (
            -sum(edit_name in settings for edit_name, _ in _targets(rule, facts)),
            is_foreign[rule.id],
            not rule.gain.replay,
            _ORDER[evaluate_all(rule.when, facts)],
            rule.id,
        ),
    )
    by_lever: dict[str, Rule] = {}
    for rule in in_order:
        by_lever.setdefault(rule.lever or rule.id, rule)
    candidates = [rule for rule in by_lever.values() if not is_foreign[rule.id]] or list(by_lever.values())
    answers = [(rule, *replays.find(rule, _assume(rule, settings, facts))) for rule in candidates]
    chosen = [rule for rule, transformations, _ in answers if transformations]
    if not chosen:
        rule, _, reason = answers[0]
        return Changes(unknown=(f"{shown}: not predicted by rule {rule.id}: {reason}",))
    transformations = tuple(change for _, changes, _ in answers for change in changes)
    notes = [*_note_other_edits(chosen, name, shown, facts), *_note_obstacles(chosen, shown, facts)]
    return Changes(transformations, notes=tuple(notes))


def _recompute_modules(
    name: str, settings: Mapping[str, ConfigData], rules: Sequence[Rule], facts: FactSheet, replays: Replays
) -> Changes | None:
    """From full recompute to modules: none, and what rules that free memory say of each; None for any other change.

    None as well where another rule proposes these modules for this run: then that one answers, as in the plan.
    """
    module_rules = find_module_rules(name, settings, rules, facts)
    if not module_rules:
        return None
    if not all(rule.gain.frees_memory for rule in _find_proposing(MODULES, settings[MODULES], rules, facts)):
        return None
    without = _set(GRANULARITY, {GRANULARITY: None}, rules, facts, replays)
    costs = [replays.find(rule, facts)[0] for rule in module_rules]
    if not without.transformations or not all(costs):
        return None
    return Changes(tuple(chain(without.transformations, *costs)))


def _find_proposing(name: str, value: ConfigData, rules: Sequence[Rule], facts: FactSheet) -> list[Rule]:
    return [rule for rule in rules if any(_sets(edited, to, name, value) for edited, to in _targets(rule, facts))]


def _assume(rule: Rule, settings: Mapping[str, ConfigData], facts: FactSheet) -> FactSheet:
    """``facts`` with what the edits of ``rule`` that were asked for are meant for, where that is not known.

    Whether a run fits without recompute is not known without a log; who asks for none asks as if it did.
    """
    assumed: dict[str, FactValue] = {}
    for edit in rule.edits:
        name = fact_of(edit)
        if name not in settings or not _sets(name, target_of(edit, facts), name, settings[name]):
            continue
        if len([other for other in rule.edits if fact_of(other) == name]) < 2:
            continue
        for condition in list_conditions(that_are(Truth.UNKNOWN, edit.only_if, facts)):
            if (value := _satisfy(condition)) is not None:
                assumed[condition.name] = value
    return facts.with_values(assumed) if assumed else facts


def _satisfy(condition: Condition) -> FactValue | None:
    """A value with which ``condition`` holds; None where its operator names none."""
    if condition.operator in ("==", "is", ">=", "<="):
        return condition.value
    if condition.operator in (">", "<") and isinstance(condition.value, int | float):
        return nextafter(condition.value, inf if condition.operator == ">" else -inf)
    return None


def _needs_another(rule: Rule, name: str, facts: FactSheet) -> bool:
    """Whether ``rule`` is for runs in which the setting ``name`` has another value than now.

    What its edit changes there it does not change here: from full recompute, selective recompute takes away work.
    """
    of_setting = [condition for condition in (*rule.applies_to, *rule.when) if list_names(condition) == (name,)]
    return evaluate_all(of_setting, facts) is Truth.FAILS


def _may_set(rule: Rule, name: str, value: ConfigData) -> bool:
    """Whether an edit of ``rule`` gives the setting ``name`` the ``value``, in whatever run."""
    return any(_sets(fact_of(edit), edit.literal, name, value) for edit in rule.edits)


def _contradicts(rule: Rule, settings: Mapping[str, ConfigData], facts: FactSheet) -> bool:
    """Whether ``rule`` gives another of ``settings`` a value that was not asked for."""
    edited = {name: to for name, to in _targets(rule, facts) if name in settings}
    return not all(_sets(name, to, name, settings[name]) for name, to in edited.items())


def _note_obstacles(chosen: Sequence[Rule], shown: str, facts: FactSheet) -> list[str]:
    """Why a rule would not propose its edits for this run."""
    notes = []
    for rule in chosen:
        if failing := that_are(Truth.FAILS, rule.applies_to, facts):
            notes.append(f"{shown} is not meant for this run: {explain(failing, facts).rstrip('.')}.")
        notes += [f"{shown} is blocked: {part.reason.rstrip('.')}." for part in failing_requirements(rule, facts)]
    return notes


_ORDER = {Truth.HOLDS: 0, Truth.UNKNOWN: 1, Truth.FAILS: 2}


def _targets(rule: Rule, facts: FactSheet) -> list[tuple[str, ConfigData]]:
    """What the edits of ``rule`` set, and to what; without edits for other runs."""
    return [
        (fact_of(edit), target_of(edit, facts))
        for edit in rule.edits
        if evaluate_all(edit.only_if, facts) is not Truth.FAILS
    ]


def _sets(edited: str, to: ConfigData, name: str, value: ConfigData) -> bool:
    """Whether an edit gives the setting ``name`` the ``value``. Of lists the order does not count."""
    if edited != name:
        return False
    if isinstance(to, tuple) and isinstance(value, tuple):
        return sorted(map(str, to)) == sorted(map(str, value))
    return same(to, str(value) if name.startswith("env.") and value is not None else value)


def _describe_unknown_setting(name: str, shown: str, rules: Sequence[Rule], facts: FactSheet) -> str:
    values = {show(to) for rule in rules for edit_name, to in _targets(rule, facts) if edit_name == name}
    key = name.partition(".")[2]
    chosen = [edit for rule in rules if name in rule.gain.chosen_by for edit in _targets(rule, facts)]
    if chosen:
        together = ", ".join(f"{edit_name.partition('.')[2]}={show(to)}" for edit_name, to in chosen)
        return (
            f"--set {shown}: no rule knows what it changes by itself, only together with {together} where that is not "
            "set yet"
        )
    if values:
        return f"--set {shown}: no rule knows what this value changes; known is {key}={' or '.join(sorted(values))}"
    keys = {edit_name.partition(".")[2] for rule in rules for edit_name, _ in _targets(rule, facts)}
    return f"--set {shown}: no rule knows what this setting changes{suggest(key, keys)}; see: three-walls rules list"


def _note_other_edits(chosen: Sequence[Rule], name: str, shown: str, facts: FactSheet) -> list[str]:
    notes = []
    for rule in chosen:
        others = []
        for edit_name, to in _targets(rule, facts):
            current = facts.get(edit_name)
            if edit_name != name and (current.is_missing or not same(current.value, to)):
                others.append(f"{edit_name.partition('.')[2]}={show(to)}")
        if others and rule.gain.replay:
            notes.append(f"{shown} is taken together with {', '.join(others)}, as rule {rule.id} proposes.")
    return notes


def _scale(name: str, factor: float) -> Changes:
    levels = Levels(factor, factor, factor)
    if name == HOST:
        return Changes((Transformation(Action.HOST, host=levels, reason="asked for"),))
    if name == NCCL:
        select = Selection(categories=COMMUNICATION_CATEGORIES, kernels=_NCCL_KERNELS)
    elif name in SCALABLE:
        select = Selection(categories=CATEGORY_GROUPS.get(name, (name,)))
    else:
        raise UsageError(
            f"--scale {name}: expected host, nccl, communication, compute, gemms, copies or a bucket of the budget"
            f"{suggest(name, SCALABLE)}"
        )
    return Changes((Transformation(Action.SCALE, select, time=levels, reason="asked for"),))


def _drop(kernels: str) -> Transformation:
    nothing = Levels(0.0, 0.0, 0.0)
    return Transformation(Action.SCALE, Selection(kernels=kernels), time=nothing, host=nothing, reason="asked for")


def _change_network(bytes_per_s: float, facts: FactSheet) -> Changes:
    """Transfers over the network at another bandwidth: between fastest / asked, and achieved / asked of their time.

    The first holds if transfers fall short of the asked bandwidth as much as they now fall short of the fastest one,
    the second, which gains more, if all of them reach it.
    """
    transformations, reasons = [], []
    for categories, achieved, fastest, is_crossing in (
        (TOKEN_EXCHANGES, "ep_achieved_bytes_per_s", "ep_fastest_bytes_per_s", _is_ep_over_network(facts)),
        (("data_parallel",), "dp_fastest_bytes_per_s", "dp_fastest_bytes_per_s", _is_dp_over_network(facts)),
    ):
        if not is_crossing:
            continue
        rates = [rate for name in (achieved, fastest) if (rate := facts.number(name))]
        if not rates:
            missing = facts.get(fastest)
            reasons.append(f"{missing.label}: {missing.missing_reason or 'not known'}")
            continue
        least_gain, largest_gain = max(rates) / bytes_per_s, min(rates) / bytes_per_s
        transformations.append(
            Transformation(
                Action.SCALE,
                Selection(categories=categories),
                time=Levels(least_gain, (least_gain + largest_gain) / 2, largest_gain),
                reason="measured bandwidth over the asked one",
            )
        )
    if transformations:
        notes = (f"The bandwidth of some transfers stays as it is ({'; '.join(reasons)}).",) if reasons else ()
        return Changes(tuple(transformations), notes=notes)
    why = "; ".join(reasons) or "no communication of this run is known to use the network"
    return Changes(unknown=(f"the effect of another network is not known: {why}",))


def _is_ep_over_network(facts: FactSheet) -> bool:
    """Whether token exchanges cross the network, or do not run over NVLink although they could."""
    if facts.get("ep_within_nvlink_domain").value is True and facts.get("ep_spans_nodes").value is not True:
        return _is_nvlink_unused(facts)
    return True


def _is_dp_over_network(facts: FactSheet) -> bool:
    return facts.get("dp_spans_nodes").value is not False or _is_nvlink_unused(facts)


def _is_nvlink_unused(facts: FactSheet) -> bool:
    achieved = facts.number("nvlink_achieved_fraction")
    return achieved is not None and achieved < fact_thresholds.MINIMUM_LINK_FRACTION
