"""Answers ``what if``: what the asked changes mean for the step, and the step with them.

Settings mean what they differ from the run's own by (``advice/compare_settings.py``). A bandwidth, a factor or a
dropped kernel is a transformation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from three_walls.advice import verdict_thresholds
from three_walls.advice.compare_settings import compare_settings
from three_walls.advice.edits import is_set, settings_as_edits
from three_walls.advice.finding import PlannedEdit, PlanNote
from three_walls.advice.format.effect import Effect
from three_walls.advice.format.rule import Rule
from three_walls.advice.what_if import Changes, Question, WhatIf
from three_walls.advice.widening import Widening
from three_walls.facts.fact_rows import MINIMUM_LINK_FRACTION, Prediction
from three_walls.lib.errors import UsageError
from three_walls.lib.fact import Fact, FactSheet, FactValue
from three_walls.lib.load_documents import suggest
from three_walls.lib.plain_data import ConfigData, ConfigScalar
from three_walls.lib.text import in_percent
from three_walls.replay.transformation import CATEGORY_GROUPS, Action, Predictor, Selection, Transformation
from three_walls.tables.buckets import CATEGORIES, COMMUNICATION_CATEGORIES, TOKEN_EXCHANGES
from three_walls.tables.config_keys import config_keys
from three_walls.tables.config_values import show
from three_walls.tables.prediction_intervals import Levels, PredictionIntervals, StepLimits

HOST, NCCL = "host", "nccl"

SCALABLE = (HOST, NCCL, *CATEGORY_GROUPS, *CATEGORIES)
"""What a factor can apply to."""

_PEAK = "memory_peak_fraction"
_NCCL_KERNELS = "(?i)nccl"
_LATE_RANK = (
    "Rank {:.0f} is late in this step, and stays so with these changes. Where it holds the run back, a plan starts "
    "from the step without its delay, so its gains differ."
)

Validate = Callable[[Sequence[PlannedEdit]], tuple[PlanNote, ...]]
"""Why a launcher refuses edits that are made together; empty if it accepts them."""
FactsAfter = Callable[[Mapping[str, FactValue]], Mapping[str, Fact]]
"""Facts that follow from the configuration alone, of the run with other settings."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A run whose step can be replayed with changes."""

    rules: tuple[Rule, ...]
    effects: tuple[Effect, ...]
    facts: FactSheet
    predictor: Predictor
    validate: Validate = lambda _: ()
    facts_after: FactsAfter = lambda _: {}
    intervals: PredictionIntervals | None = None
    """What measured gains differ from replays by; None: ranges are those of the parameters alone."""

    def with_edits(
        self,
        settings: Mapping[str, ConfigData | list[ConfigScalar]] = MappingProxyType({}),
        *,
        scales: Mapping[str, float] = MappingProxyType({}),
        dropped_kernels: Sequence[str] = (),
        network_bytes_per_s: float | None = None,
    ) -> WhatIf:
        """The step with changes, as ``three-walls whatif`` predicts it.

        - ``settings``: new values of settings, by Megatron Core name; ``env.<VARIABLE>`` for variables.
        - ``scales``: factor on the time of ``host``, ``nccl``, a group of buckets, or a bucket.
        - ``dropped_kernels``: regular expressions, searched in kernel names.
        - ``network_bytes_per_s``: bandwidth of the network per GPU and direction.

        Raises UsageError for a name that does not exist.
        """
        named = {
            name if name.startswith("env.") else f"config.{name}": tuple(value) if isinstance(value, list) else value
            for name, value in settings.items()
        }
        question = Question(named, tuple(scales.items()), tuple(dropped_kernels), network_bytes_per_s)
        return answer(question, self)


def answer(question: Question, run: ReplayedRun) -> WhatIf:
    """The step of ``run`` with the changes of ``question``. Raises UsageError for a name that does not exist."""
    predictor = run.predictor
    changes = find_changes(question, run)
    refused = run.validate(settings_as_edits(question.settings, run.facts)) if question.settings else ()
    source = describe_step_source(run.facts)
    if predictor.missing_reason:
        step, reason, notes = _step_without_replay(run.facts), predictor.missing_reason, changes.notes
        return WhatIf(step, source, None, reason, notes=notes, refused=refused)
    now = predictor.step_ns
    step = now if not now.because_unknown else None
    if reason := "; ".join(changes.unknown) or now.because_unknown:
        return WhatIf(step, source, None, reason, notes=changes.notes, refused=refused)
    after = predictor.predict(changes.transformations)
    notes = (*changes.notes, *_explain(changes.transformations, predictor), *_note_memory(question, run))
    if after.because_unknown:
        return WhatIf(step, source, None, after.because_unknown, notes=notes, refused=refused)
    if (rank := run.facts.number("culprit_rank")) is not None:
        notes += (_LATE_RANK.format(rank),)
    limits_after = predictor.limits_after(changes.transformations)
    if changes.effects and (widening := Widening.of(predictor, run.facts, run.intervals)):
        after = widening.widen_step(after, changes.effects, StepLimits.of(limits_after))
        notes = (*notes, widening.describe(changes.effects))
    return WhatIf(
        step,
        source,
        after,
        budget=_fit(predictor.budget_after(()), now.likely_ns),
        budget_after=_fit(predictor.budget_after(changes.transformations), after.likely_ns),
        limits_after=limits_after,
        notes=notes,
        refused=refused,
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


def find_changes(question: Question, run: ReplayedRun) -> Changes:
    """What ``question`` changes in the step of ``run``. Raises UsageError for a name that does not exist."""
    _check_names(question.settings)
    difference = compare_settings(run.effects, run.facts, question.settings, run.predictor.explain)
    parts = [Changes(difference.transformations, difference.unknown, difference.notes, difference.effects)]
    parts += [_scale(name, factor) for name, factor in question.scales]
    parts += [Changes((_drop(kernels),)) for kernels in question.dropped_kernels]
    if question.network_bytes_per_s is not None:
        parts.append(_change_network(question.network_bytes_per_s, run.facts))
    return Changes(
        tuple(change for part in parts for change in part.transformations),
        tuple(dict.fromkeys(reason for part in parts for reason in part.unknown)),
        tuple(dict.fromkeys((*_note_unchanged(question, run), *(note for part in parts for note in part.notes)))),
        difference.effects,
    )


def _check_names(settings: Mapping[str, ConfigData]) -> None:
    for name in settings:
        kind, _, key = name.partition(".")
        if kind == "config" and key not in config_keys().keys:
            raise UsageError(f"{key} is no setting that three-walls knows{suggest(key, config_keys().keys)}")


def _note_memory(question: Question, run: ReplayedRun) -> Iterator[str]:
    """What the settings make of the peak of memory, where the log and the configuration tell it."""
    now, then = run.facts.number(_PEAK), None
    if now is not None and question.settings and (fact := run.facts_after(question.settings).get(_PEAK)):
        then = fact.value
    if not isinstance(then, float) or now is None or in_percent(then) == in_percent(now):
        return
    fits = " It may not fit." if then > 1 - verdict_thresholds.LEAST_FREE_MEMORY_FRACTION else ""
    yield f"The peak of memory is then {in_percent(then)} of the device's by the estimate, now {in_percent(now)}.{fits}"


def _note_unchanged(question: Question, run: ReplayedRun) -> Iterator[str]:
    for name, value in question.settings.items():
        if is_set(name, value, run.facts):
            yield f"{name.partition('.')[2]}={show(value)} is set already: it changes nothing."


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
    return achieved is not None and achieved < MINIMUM_LINK_FRACTION
