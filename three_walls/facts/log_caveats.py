"""Warnings that come from the training log: another run, a perturbed step, what the run itself complained about."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.facts.log_facts import JoinedLog
from three_walls.model.fact import FactSheet
from three_walls.model.report import ReportWarning, SlowRank
from three_walls.model.training_log import TrainingLog
from three_walls.model.units import ns_to_ms

_COMPLAINTS = ("dispatcher", "overlap", "override_skipped", "straggler")
_NO_GRAPHS = "No graphable layers"
_NOTHING_TO_OVERLAP = "due to TP size < 2"
"""Recipes of Megatron-Bridge 0.6 ask for tensor-parallel overlap in every layout: here there was nothing to overlap."""
MOST_COMPLAINTS = 5
_BYTES_PER_GIB = 1 << 30


def warn_of_log(log: TrainingLog | None, joined: JoinedLog, facts: FactSheet) -> tuple[ReportWarning, ...]:
    """Every warning about or from the log, in a fixed order; none without a log."""
    if log is None or joined.summary is None:
        return ()
    names = ", ".join(log.files)
    found = [ReportWarning("log-unreadable", f"left out: {name}") for name in log.unread[:MOST_COMPLAINTS]]
    said = (log.iterations, log.step_times, log.memory, log.argument_block, log.events, log.ooms, log.timers, log.jobs)
    if not any(said):
        message = f"{names}: no line of Megatron-LM or Megatron-Bridge found; is it the training's own output?"
        return (*found, ReportWarning("log-says-nothing", message))
    if joined.mismatch:
        found.append(ReportWarning("log-mismatch", f"{names} is of another run than the trace: {joined.mismatch}"))
    found += _about_perturbation(facts)
    found += _about_memory(log)
    found += _about_early_memory(facts)
    found += _about_slow_ranks(joined.summary.slow_ranks, facts)
    complaints = [
        event
        for event in log.events
        if (event.kind in _COMPLAINTS or event.text == _NO_GRAPHS) and not event.text.endswith(_NOTHING_TO_OVERLAP)
    ]
    for one in complaints[:MOST_COMPLAINTS]:
        found.append(ReportWarning(f"log-{one.kind.replace('_', '-')}", f"the log says: {one.text}"))
    return tuple(found)


def _about_perturbation(facts: FactSheet) -> list[ReportWarning]:
    ratio, excess = facts.number("profiler_perturbation_ratio"), facts.number("profiler_excess_ns")
    traced, unprofiled = facts.number("traced_step_ns"), facts.number("unprofiled_step_ns")
    if not ratio or not excess or not traced or not unprofiled:
        return []
    idle = facts.number("host_idle_ns")
    if idle is None:
        said = "host time is inflated, and how much of the step it is cannot be told from this trace"
    elif excess > idle:
        said = (
            f"all of its host time ({_ms(idle)}) is taken to be the profiler's, and {_ms(excess - idle)} more lie "
            "elsewhere (waits for other slowed ranks, or unlike steps): every other share is too small or too large "
            "by as much"
        )
    else:
        said = f"{_ms(excess)} of its host time ({_ms(idle)}) are taken to be the profiler's and not recoverable"
    message = (
        f"the traced step takes {_ms(traced)}, unprofiled ones {_ms(unprofiled)} ({ratio:.2f} times, from the log): "
        f"the profiler slows every launch; {said}"
    )
    return [ReportWarning("profiler-perturbation", message)]


def _about_memory(log: TrainingLog) -> list[ReportWarning]:
    if not log.ooms:
        return []
    largest = max(log.ooms, key=lambda one: (one.requested_bytes, one.reserved_unallocated_bytes or 0, one.gpu or 0))
    asked = _gib(largest.requested_bytes)
    message = f"the log holds {len(log.ooms)} reports of memory exhausted; the largest request was {asked}"
    held = largest.reserved_unallocated_bytes
    if held is not None:
        kind = "fragmentation" if held >= largest.requested_bytes else "no fragmentation: the memory was in use"
        message += f" with {_gib(held)} reserved but unallocated ({kind})"
    if largest.raised_in:
        message += f", raised in {largest.raised_in}"
    return [ReportWarning("log-out-of-memory", message)]


def _about_slow_ranks(slow: Sequence[SlowRank], facts: FactSheet) -> list[ReportWarning]:
    """One warning for all of them: a rank that is slow in several timers is named once."""
    if not slow:
        return []
    ranks = list(dict.fromkeys(one.rank for one in slow))
    named = "; ".join(
        _describe_slow_rank([one for one in slow if one.rank == rank]) for rank in ranks[:MOST_COMPLAINTS]
    )
    more = f"; and {len(ranks) - MOST_COMPLAINTS} more ranks" if len(ranks) > MOST_COMPLAINTS else ""
    message = f"by the log's timers {named}{more}: find out why before changing the config"
    if (facts.number("config.expert_model_parallel_size") or 0) > 1:
        message += "; the ranks of an expert group wait for each other in it, so a slow one makes all of them take long"
    if facts.number("config.pipeline_model_parallel_size") is None:
        message += "; whether there are pipeline stages, whose ranks do different work, is not known"
    return [ReportWarning("log-slow-rank", message)]


def _describe_slow_rank(timers: Sequence[SlowRank]) -> str:
    said = (
        f"{one.ns / one.fastest_ns:.2f} times as long as rank {one.fastest_rank} in {one.timer} "
        f"({one.prints} of {one.of_prints} prints)"
        for one in timers
        if one.fastest_ns
    )
    return f"rank {timers[0].rank} takes {', '.join(said) or 'longest'}"


def _about_early_memory(facts: FactSheet) -> list[ReportWarning]:
    printed, later = facts.number("log_peak_memory_bytes"), facts.number("memory_peak_bytes")
    if facts.number("log_memory_iterations_count") != 1 or printed is None:
        return []
    message = (
        "the log prints memory after its first iteration alone, in which the optimizer had no moments yet while "
        f"gradients were computed ({_gib(round(printed))} at most): later peaks are higher"
    )
    if later is not None:
        message += f", and here {_gib(round(later - printed))} of moments (from the config) are counted on top"
    return [ReportWarning("log-memory-early", message)]


def _ms(value_ns: float) -> str:
    return f"{ns_to_ms(value_ns):.1f} ms"


def _gib(value_bytes: int) -> str:
    return f"{value_bytes / _BYTES_PER_GIB:.1f} GiB"
