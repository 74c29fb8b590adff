"""Judges what the captures of a run support: an answer for each capability of ``tables/capture.yaml``.

Made from the numbers of ``capture_facts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from three_walls.capture.capture_commands import profiler_words, spell_settings
from three_walls.capture.capture_facts import CaptureFacts, read_captures
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM, Capability, CaptureRules, capture_rules
from three_walls.capture.capture_results import Answer, Check, Examination
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.text import in_ms, in_percent, plural
from three_walls.step import timeline_thresholds
from three_walls.tables.shareable import cut_sentence
from three_walls.trace.capabilities import YES

_PROGRAM = "python pretrain_gpt.py ..."
_MINIMUM_JOINED_LAUNCHES_FRACTION = 0.99
"""Of the kernels: those that need their launch call for launches to count as recorded. Launches at the edges of a
capture are cut off; with more kernels without their API call something is missing."""
_MAXIMUM_LISTED_RANKS = 64
"""For larger runs the ranks to profile are an example: nobody captures them all."""

Judgement = tuple[Answer, str]
"""Whether the capability is there, and what the captures contain of it."""

Judge = Callable[[CaptureFacts, CaptureRules], Judgement]

_MAXIMUM_MESSAGES = 2


def examine(paths: Sequence[Path], step_range: str | None = None) -> Examination:
    """What the exports ``paths`` (files or directories of a run) support, and a command that records what they lack.

    Raises InputError where one cannot be read.
    """
    traces, facts = read_captures(paths, step_range)
    rules = capture_rules()
    checks = tuple(_check(capability, facts, rules) for capability in rules.capabilities.values())
    missing = [rules.capabilities[check.name] for check in checks if check.answer is Answer.NO]
    can_be_recorded = any(capability.nsys or capability.settings for capability in missing)
    memory = any("--cuda-memory-usage=true" in capability.nsys for capability in missing)
    return Examination(
        inputs=tuple(trace.input for trace in traces),
        ranks=len(facts.ranks),
        checks=checks,
        recapture=" ".join([*profiler_words("torchrun", memory), _PROGRAM]) if can_be_recorded else None,
        bridge=_spell(missing, facts, BRIDGE),
        megatron_lm=_spell(missing, facts, MEGATRON_LM),
    )


def _check(capability: Capability, facts: CaptureFacts, rules: CaptureRules) -> Check:
    answer, found = JUDGES[capability.name](facts, rules)
    if answer is Answer.YES:
        return Check(capability.name, capability.title, answer, found, capability.claims)
    return Check(
        name=capability.name,
        title=capability.title,
        answer=answer,
        found=found,
        claims=capability.claims,
        remedy=capability.remedy,
        nsys=capability.nsys,
        bridge=_spell([capability], facts, BRIDGE),
        megatron_lm=_spell([capability], facts, MEGATRON_LM),
    )


def _spell(capabilities: Sequence[Capability], facts: CaptureFacts, framework: str) -> tuple[str, ...]:
    """Settings that record ``capabilities``. The ranks to profile are all of the run, if their number is known."""
    settings: dict[str, ConfigData] = {}
    for capability in capabilities:
        if framework in capability.frameworks:
            settings.update(capability.settings)
    if "profile_ranks" in settings and facts.world_size is not None and facts.world_size <= _MAXIMUM_LISTED_RANKS:
        settings["profile_ranks"] = tuple(range(facts.world_size))
    return spell_settings({"use_nsys_profiler": True, **settings} if settings else {}, framework)


def judge_kernels(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.without_kernels:
        return Answer.NO, f"no CUDA kernels in {', '.join(facts.without_kernels)}"
    return Answer.YES, f"{facts.kernels:,} kernels in {_reports(facts.traces)}"


def judge_clean_steps(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.clean_steps is None:
        return Answer.UNKNOWN, "there are no kernels to find steps in"
    found = f"{facts.clean_steps} on the rank with the fewest; boundaries from {' and '.join(facts.step_sources)}"
    return (Answer.YES if facts.clean_steps >= 2 else Answer.NO), found


def judge_training_steps(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.training_step_ranges:
        return Answer.YES, f"{facts.training_step_ranges:,} ranges"
    return Answer.NO, f"none; step boundaries from {' and '.join(facts.step_sources) or 'nothing'}"


def judge_operator_sizes(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.operator_sizes:
        return Answer.YES, f"in {_reports(facts.traces)}"
    return Answer.NO, "not every report has operator ranges (aten::...) with shapes"


def judge_launches(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if not facts.api_calls:
        return Answer.NO, "no API calls"
    if facts.launched_fraction is None:
        return Answer.UNKNOWN, f"{facts.api_calls:,} API calls, but no kernel outside CUDA graphs that they launched"
    answer = Answer.YES if facts.launched_fraction >= _MINIMUM_JOINED_LAUNCHES_FRACTION else Answer.NO
    launched = in_percent(facts.launched_fraction)
    return answer, f"{facts.api_calls:,} API calls; {launched} of the kernels have their launch call"


def judge_graph_nodes(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    state = facts.capabilities.get("inside_cuda_graphs", "not checked")
    return (Answer.YES, "every kernel is visible") if state == YES else (Answer.NO, state)


def judge_all_ranks(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    count = len(set(facts.ranks))
    if facts.world_size is None:
        return Answer.UNKNOWN, f"{count} captured; the number of ranks of the run is not recorded (WORLD_SIZE)"
    return (Answer.YES if count >= facts.world_size else Answer.NO), f"{count} of {facts.world_size} captured"


def judge_ranks_known(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if len(set(facts.ranks)) < len(facts.ranks):
        return Answer.NO, "several reports have the same rank number: are they all of one run?"
    if facts.ranks_recorded:
        return Answer.YES, f"ranks {', '.join(map(str, facts.ranks[:16]))}{', ...' if len(facts.ranks) > 16 else ''}"
    return (
        Answer.NO,
        "the launcher's rank variable was not recorded, or a report has several ranks: numbered in the order found",
    )


def judge_one_clock(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    missing = [] if facts.hosts is not None else ["its host"]
    missing += [] if facts.session_starts == facts.traces else ["when its clock began"]
    if missing:
        return Answer.NO, f"not every report records {' and '.join(missing)}"
    return Answer.YES, f"{facts.hosts} {plural(facts.hosts or 0, 'host')}"


def judge_start_skew(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.traces < 2:
        return Answer.YES, "one report"
    if facts.start_skew_ns is None or facts.step_ns is None:
        return Answer.UNKNOWN, "the reports do not record when their clocks began, or contain no kept step"
    found = f"they begin {in_ms(facts.start_skew_ns, ',.0f')} apart; a step takes {in_ms(facts.step_ns, ',.0f')}"
    if facts.hosts is None or facts.hosts > 1:
        return Answer.UNKNOWN, f"{found}; the hosts' clocks may differ by as much"
    most = timeline_thresholds.MINIMUM_START_SKEW_FRACTION * facts.step_ns
    return (Answer.YES if facts.start_skew_ns <= most else Answer.NO), found


def judge_event_edges(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if not facts.stream_waits:
        state = facts.capabilities.get("synchronization", "not checked")
        return (Answer.YES, "no stream waits for an event") if state == YES else (Answer.NO, state)
    pairs = "each wait identifies its record" if facts.capabilities.get("event_sync_ids") == YES else "paired by order"
    return Answer.YES, f"{facts.stream_waits:,} waits, {facts.event_records:,} listed records, {pairs}"


def judge_nccl_payload(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.nccl_payload:
        return Answer.YES, "recorded"
    return Answer.NO, "not every export has the payloads of NCCL's NVTX ranges"


def judge_memory_usage(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    state = facts.capabilities.get("gpu_memory_usage", "not checked")
    return (Answer.YES, "recorded") if state == YES else (Answer.NO, state)


def judge_command_line(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    count = facts.traces - len(facts.without_kernels)
    found = f"Megatron settings in {facts.with_command} of {_reports(count)}"
    return (Answer.YES if count and facts.with_command == count else Answer.NO), found


def judge_environment(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    count = facts.traces - len(facts.without_kernels)
    found = f"recorded in {facts.with_environment} of {_reports(count)}"
    return (Answer.YES if count and facts.with_environment == count else Answer.NO), found


def judge_profiler_overhead(facts: CaptureFacts, rules: CaptureRules) -> Judgement:
    if facts.overhead_fraction is None:
        return Answer.UNKNOWN, "no step was kept"
    found = f"by its own account it delayed a thread during {in_percent(facts.overhead_fraction)} of the kept steps"
    is_low = facts.overhead_fraction <= rules.maximum_overhead_fraction
    note = "; the time that it adds to every launch is not included" if is_low else ""
    return (Answer.YES if is_low else Answer.NO), found + note


def judge_no_drops(facts: CaptureFacts, rules: CaptureRules) -> Judgement:
    dropped = [text for text in facts.messages if any(pattern.search(text) for pattern in rules.dropped)]
    if dropped:
        return Answer.NO, "; ".join(" ".join(cut_sentence(text).split()) for text in dropped[:_MAXIMUM_MESSAGES])
    if facts.capabilities.get("diagnostics") != YES:
        return Answer.UNKNOWN, "the export contains no messages of the profiler"
    if any(pattern.search(text) for text in facts.messages for pattern in rules.usual):
        return Answer.YES, "the profiler gives only its usual warning for captures that end before the program"
    return Answer.YES, "the profiler reports none"


def _reports(count: int) -> str:
    return f"{count} {plural(count, 'report')}"


JUDGES: dict[str, Judge] = {
    "kernels": judge_kernels,
    "clean_steps": judge_clean_steps,
    "training_steps": judge_training_steps,
    "operator_sizes": judge_operator_sizes,
    "launches": judge_launches,
    "graph_nodes": judge_graph_nodes,
    "all_ranks": judge_all_ranks,
    "ranks_known": judge_ranks_known,
    "one_clock": judge_one_clock,
    "start_skew": judge_start_skew,
    "event_edges": judge_event_edges,
    "nccl_payload": judge_nccl_payload,
    "memory_usage": judge_memory_usage,
    "command_line": judge_command_line,
    "environment": judge_environment,
    "profiler_overhead": judge_profiler_overhead,
    "no_drops": judge_no_drops,
}
"""By capability of ``tables/capture.yaml``."""
