"""Judges the facts of a capture: one answer per capability of ``tables/capture.yaml``, with what was found."""

from __future__ import annotations

from collections.abc import Callable

from three_walls.captures.doctor.capture_facts import CaptureFacts
from three_walls.inputs.nsys.capabilities import YES
from three_walls.model.examination import Answer
from three_walls.model.units import ns_to_ms
from three_walls.tables.capture import CaptureRules
from three_walls.tables.scrub import cut_sentence
from three_walls.tables.thresholds import default_rank_thresholds

Judgement = tuple[Answer, str]
Judge = Callable[[CaptureFacts, CaptureRules], Judgement]

_NEARLY_ALL = 0.99
_MOST_MESSAGES = 2


def judge_kernels(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.without_kernels:
        return Answer.NO, f"no CUDA kernels in {', '.join(facts.without_kernels)}"
    return Answer.YES, f"{facts.kernels:,} kernels in {_files(facts.traces)}"


def judge_clean_steps(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.clean_steps is None:
        return Answer.UNKNOWN, "there are no kernels to find steps in"
    found = f"{facts.clean_steps} of the rank with the fewest, found by {' and '.join(facts.step_sources)}"
    return (Answer.YES if facts.clean_steps >= 2 else Answer.NO), found


def judge_training_steps(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.training_step_ranges:
        return Answer.YES, f"{facts.training_step_ranges:,} ranges"
    return Answer.NO, f"none; steps are found by {' and '.join(facts.step_sources) or 'nothing'}"


def judge_operator_sizes(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.operator_sizes:
        return Answer.YES, f"in {_files(facts.traces)}"
    return Answer.NO, "no range of an operator (aten::...) says sizes, or not in every report"


def judge_launches(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if not facts.api_calls:
        return Answer.NO, "no API calls"
    if facts.launched_fraction is None:
        return Answer.UNKNOWN, f"{facts.api_calls:,} API calls, and no kernel outside of graphs to join them with"
    answer = Answer.YES if facts.launched_fraction >= _NEARLY_ALL else Answer.NO
    return answer, f"{facts.api_calls:,} API calls; {facts.launched_fraction:.1%} of the kernels have theirs"


def judge_graph_nodes(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    state = facts.capabilities.get("inside_cuda_graphs", "not looked at")
    return (Answer.YES, "every kernel is visible") if state == YES else (Answer.NO, state)


def judge_all_ranks(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    have = len(set(facts.ranks))
    if facts.world_size is None:
        return Answer.UNKNOWN, f"{have} captured; the launch does not say how many there are (WORLD_SIZE)"
    return (Answer.YES if have >= facts.world_size else Answer.NO), f"{have} of {facts.world_size} captured"


def judge_ranks_known(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if len(set(facts.ranks)) < len(facts.ranks):
        return Answer.NO, "more than one report says that it is the same rank: are they of one run?"
    if facts.ranks_told:
        return Answer.YES, f"ranks {', '.join(map(str, facts.ranks[:16]))}{', ...' if len(facts.ranks) > 16 else ''}"
    return Answer.NO, "the launcher's variable is not recorded, or one report holds several ranks: numbered as found"


def judge_one_clock(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    lacking = [] if facts.hosts is not None else ["the host"]
    lacking += [] if facts.session_starts == facts.traces else ["when its clock began"]
    if lacking:
        return Answer.NO, f"some report does not say {' and '.join(lacking)}"
    return Answer.YES, f"{facts.hosts} host{'s' if facts.hosts != 1 else ''}"


def judge_start_skew(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if facts.traces < 2:
        return Answer.YES, "one report"
    if facts.start_skew_ns is None or facts.step_ns is None:
        return Answer.UNKNOWN, "the reports do not say when their clocks began, or hold no step"
    found = f"they begin {ns_to_ms(facts.start_skew_ns):,.0f} ms apart; a step takes {facts.step_ns / 1e6:,.0f} ms"
    if facts.hosts is None or facts.hosts > 1:
        return Answer.UNKNOWN, f"{found}; the hosts' clocks may differ by as much"
    most = default_rank_thresholds().minimum_start_skew_fraction * facts.step_ns
    return (Answer.YES if facts.start_skew_ns <= most else Answer.NO), found


def judge_event_edges(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    if not facts.stream_waits:
        state = facts.capabilities.get("synchronization", "not looked at")
        return (Answer.YES, "no stream waits for any") if state == YES else (Answer.NO, state)
    pairs = "each wait names its record" if facts.capabilities.get("event_sync_ids") == YES else "paired by order"
    return Answer.YES, f"{facts.stream_waits:,} waits and {facts.event_records:,} listed records, {pairs}"


def judge_nccl_payload(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    return (Answer.YES, "recorded") if facts.nccl_payload else (Answer.NO, "no payload of NCCL's ranges in the export")


def judge_memory_usage(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    state = facts.capabilities.get("gpu_memory_usage", "not looked at")
    return (Answer.YES, "recorded") if state == YES else (Answer.NO, state)


def judge_command_line(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    of = facts.traces - len(facts.without_kernels)
    found = f"settings of Megatron in {facts.with_command} of {_files(of)}"
    return (Answer.YES if of and facts.with_command == of else Answer.NO), found


def judge_environment(facts: CaptureFacts, _: CaptureRules) -> Judgement:
    of = facts.traces - len(facts.without_kernels)
    found = f"recorded in {facts.with_environment} of {_files(of)}"
    return (Answer.YES if of and facts.with_environment == of else Answer.NO), found


def judge_profiler_overhead(facts: CaptureFacts, rules: CaptureRules) -> Judgement:
    if facts.overhead_fraction is None:
        return Answer.UNKNOWN, "there is no kept step"
    found = f"it says that it held up a thread for {facts.overhead_fraction:.1%} of the kept steps"
    is_little = facts.overhead_fraction <= rules.maximum_overhead_fraction
    note = "; what it adds to every launch is not in that" if is_little else ""
    return (Answer.YES if is_little else Answer.NO), found + note


def judge_no_drops(facts: CaptureFacts, rules: CaptureRules) -> Judgement:
    dropped = [text for text in facts.messages if any(pattern.search(text) for pattern in rules.dropped)]
    if dropped:
        return Answer.NO, "; ".join(" ".join(cut_sentence(text).split()) for text in dropped[:_MOST_MESSAGES])
    if facts.capabilities.get("diagnostics") != YES:
        return Answer.UNKNOWN, "the export has no messages of the profiler"
    if any(pattern.search(text) for text in facts.messages for pattern in rules.usual):
        return Answer.YES, "it says that some might be missing, as for every capture that ends before the program"
    return Answer.YES, "the profiler mentions none"


def _files(count: int) -> str:
    return f"{count} report{'s' if count != 1 else ''}"


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
"""One per capability of ``tables/capture.yaml``."""
