"""Judges what the captures of a run support: an answer for each capability of ``tables/capture.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import polars as pl

from three_walls.capture.capture_commands import profiler_words, spell_settings
from three_walls.capture.capture_facts import Captures, read_captures
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM, Capability, capture_rules
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.text import in_ms, in_percent, plural
from three_walls.step.find_steps import TRAINING_STEP_TEXT
from three_walls.step.ranks.capture_start import MINIMUM_START_SKEW_FRACTION
from three_walls.tables.shareable import cut_sentence
from three_walls.trace.beside import find_beside
from three_walls.trace.capabilities import YES
from three_walls.trace.input_file import InputFile

_PROGRAM = "python pretrain_gpt.py ..."
_MINIMUM_JOINED_LAUNCHES_FRACTION = 0.99
"""Of the kernels: those that need their launch call for launches to count as recorded. Launches at the edges of a
capture are cut off; with more kernels without their API call something is missing."""
_MAXIMUM_LISTED_RANKS = 64
"""For larger runs the ranks to profile are an example: nobody captures them all."""
_MAXIMUM_MESSAGES = 2


class Answer(StrEnum):
    """Whether a capture has a capability."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


Judgement = tuple[Answer, str]
"""Whether the capability is there, and what the captures contain of it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One capability of a capture."""

    name: str
    title: str
    answer: Answer
    found: str
    """What the capture contains of it."""
    claims: tuple[str, ...]
    """Parts of a report that need it."""
    remedy: str = ""
    """What to do where the answer is not yes."""
    nsys: tuple[str, ...] = ()
    """Options of ``nsys profile`` that record it."""
    bridge: tuple[str, ...] = ()
    """Megatron-Bridge overrides that record it."""
    megatron_lm: tuple[str, ...] = ()
    """Megatron-LM flags that record it."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of ``three-walls doctor`` for a run."""

    inputs: tuple[InputFile, ...]
    ranks: int
    """Number of captured ranks."""
    checks: tuple[Check, ...]
    recapture: str | None
    """The command that captures all that is missing; None where nothing is that a capture can add."""
    bridge: tuple[str, ...]
    """Megatron-Bridge overrides to launch that command with."""
    megatron_lm: tuple[str, ...]
    """Megatron-LM flags to launch that command with."""
    beside: tuple[str, ...] = ()
    """Names of the log and the saved configuration beside the exports, which ``analyze`` reads too."""


def examine(paths: Sequence[Path]) -> Examination:
    """What the exports ``paths`` (files or directories of a run) support, and a command that records what they lack.

    Raises InputError where one cannot be read.
    """
    captures = read_captures(paths)
    capabilities = capture_rules().capabilities
    checks = tuple(_check(capability, captures) for capability in capabilities.values())
    missing = [capabilities[check.name] for check in checks if check.answer is Answer.NO]
    can_be_recorded = any(capability.nsys or capability.settings for capability in missing)
    beside = find_beside(paths)
    lacked = {option for capability in missing for option in capability.nsys}
    recorded = {row.when for row in capture_rules().nsys if row.option in lacked}
    return Examination(
        inputs=tuple(trace.input for trace in captures.traces),
        ranks=len(captures.ranks),
        checks=checks,
        recapture=" ".join([*profiler_words("torchrun", recorded), _PROGRAM]) if can_be_recorded else None,
        bridge=_spell(missing, captures, BRIDGE),
        megatron_lm=_spell(missing, captures, MEGATRON_LM),
        beside=tuple(path.name for path in (*beside.logs, *([beside.config] if beside.config else []))),
    )


def _check(capability: Capability, captures: Captures) -> Check:
    answer, contents = JUDGES[capability.name](captures)
    check = Check(capability.name, capability.title, answer, contents, capability.claims)
    if answer is Answer.YES:
        return check
    return replace(
        check,
        remedy=capability.remedy,
        nsys=capability.nsys,
        bridge=_spell([capability], captures, BRIDGE),
        megatron_lm=_spell([capability], captures, MEGATRON_LM),
    )


def _spell(capabilities: Sequence[Capability], captures: Captures, framework: str) -> tuple[str, ...]:
    """Settings that record ``capabilities``. The ranks to profile are all of the run, if their number is known."""
    settings: dict[str, ConfigData] = {}
    for capability in capabilities:
        if framework in capability.frameworks:
            settings.update(capability.settings)
    world_size = captures.world_size
    if "profile_ranks" in settings and world_size is not None and world_size <= _MAXIMUM_LISTED_RANKS:
        settings["profile_ranks"] = tuple(range(world_size))
    return spell_settings({"use_nsys_profiler": True, **settings} if settings else {}, framework)


def judge_kernels(captures: Captures) -> Judgement:
    without = [Path(trace.input.path_name).name for trace in captures.traces if not trace.ranks]
    if without or captures.timeline is None:
        return Answer.NO, f"no CUDA kernels in {', '.join(without)}"
    kernels = captures.timeline.operations.filter(pl.col("kind") == "kernel").height
    return Answer.YES, f"{kernels:,} kernels in {_reports(len(captures.traces))}"


def judge_clean_steps(captures: Captures) -> Judgement:
    count = captures.clean_steps()
    if count is None:
        return Answer.UNKNOWN, "there are no kernels to find steps in"
    contents = f"{count} on the rank with the fewest; boundaries from {captures.step_sources}"
    return (Answer.YES if count >= 2 else Answer.NO), contents


def judge_training_steps(captures: Captures) -> Judgement:
    is_step = pl.col("text").str.contains(TRAINING_STEP_TEXT, literal=True)
    count = sum(trace.ranges.filter(is_step).height for trace in captures.traces)
    if count:
        return Answer.YES, f"{count:,} ranges"
    return Answer.NO, f"none; step boundaries from {captures.step_sources or 'nothing'}"


def judge_operator_sizes(captures: Captures) -> Judgement:
    if all(unparsed.has_operator_sizes for unparsed in captures.unparsed):
        return Answer.YES, f"in {_reports(len(captures.traces))}"
    return Answer.NO, "not every report has operator ranges (aten::...) with shapes"


def judge_launches(captures: Captures) -> Judgement:
    calls = sum(trace.api_calls.height for trace in captures.traces)
    if not calls:
        return Answer.NO, "no API calls"
    fraction = captures.launched_fraction()
    if fraction is None:
        return Answer.UNKNOWN, f"{calls:,} API calls, but no kernel outside CUDA graphs that they launched"
    answer = Answer.YES if fraction >= _MINIMUM_JOINED_LAUNCHES_FRACTION else Answer.NO
    return answer, f"{calls:,} API calls; {in_percent(fraction)} of the kernels have their launch call"


def judge_all_ranks(captures: Captures) -> Judgement:
    count = len(set(captures.ranks))
    if captures.world_size is None:
        return Answer.UNKNOWN, f"{count} captured; the number of ranks of the run is not recorded (WORLD_SIZE)"
    return (Answer.YES if count >= captures.world_size else Answer.NO), f"{count} of {captures.world_size} captured"


def judge_ranks_known(captures: Captures) -> Judgement:
    ranks = captures.ranks
    if len(set(ranks)) < len(ranks):
        return Answer.NO, "several reports have the same rank number: are they all of one run?"
    if ranks and all(rank.rank_source != "order" for trace in captures.traces for rank in trace.ranks):
        return Answer.YES, f"ranks {', '.join(map(str, ranks[:16]))}{', ...' if len(ranks) > 16 else ''}"
    return (
        Answer.NO,
        "the launcher's rank variable was not recorded, or a report has several ranks: numbered in the order found",
    )


def judge_one_clock(captures: Captures) -> Judgement:
    missing = [] if captures.hosts is not None else ["its host"]
    if any(trace.session_start_ns is None for trace in captures.traces):
        missing.append("when its clock began")
    if missing:
        return Answer.NO, f"not every report records {' and '.join(missing)}"
    return Answer.YES, f"{captures.hosts} {plural(captures.hosts or 0, 'host')}"


def judge_start_skew(captures: Captures) -> Judgement:
    if len(captures.traces) < 2:
        return Answer.YES, "one report"
    skew_ns, step_ns = captures.start_skew_ns(), captures.median_step_ns()
    if skew_ns is None or step_ns is None:
        return Answer.UNKNOWN, "the reports do not record when their clocks began, or contain no kept step"
    contents = f"they begin {in_ms(skew_ns, ',.0f')} apart; a step takes {in_ms(step_ns, ',.0f')}"
    if captures.hosts is None or captures.hosts > 1:
        return Answer.UNKNOWN, f"{contents}; the hosts' clocks may differ by as much"
    most = MINIMUM_START_SKEW_FRACTION * step_ns
    return (Answer.YES if skew_ns <= most else Answer.NO), contents


def judge_event_edges(captures: Captures) -> Judgement:
    waits = sum(trace.stream_waits.height for trace in captures.traces)
    if not waits:
        return _judge_capability(captures, "synchronization", "no stream waits for an event")
    records = sum(trace.event_records.height for trace in captures.traces)
    has_ids = captures.capabilities.get("event_sync_ids") == YES
    pairs = "each wait identifies its record" if has_ids else "paired by order"
    return Answer.YES, f"{waits:,} waits, {records:,} listed records, {pairs}"


def judge_nccl_payload(captures: Captures) -> Judgement:
    if all(unparsed.has_nccl_payload for unparsed in captures.unparsed):
        return Answer.YES, "recorded"
    return Answer.NO, "not every export has the payloads of NCCL's NVTX ranges"


def judge_hardware_counters(captures: Captures) -> Judgement:
    answer, contents = _judge_capability(captures, "gpu_metrics", "sampled in every report")
    refusals = [text for text in _messages(captures) if any(p.search(text) for p in capture_rules().refused)]
    if answer is Answer.NO and refusals:
        return answer, _quote(refusals)
    return answer, contents


def judge_command_line(captures: Captures) -> Judgement:
    recorded = [trace.config.dialect != "unknown" for trace in captures.with_kernels]
    return _judge_reports(recorded, "Megatron settings")


def judge_environment(captures: Captures) -> Judgement:
    pairs = zip(captures.unparsed, captures.traces, strict=True)
    return _judge_reports([unparsed.has_environment for unparsed, trace in pairs if trace.ranks], "recorded")


def judge_profiler_overhead(captures: Captures) -> Judgement:
    fraction = captures.overhead_fraction()
    if fraction is None:
        return Answer.UNKNOWN, "no step was kept"
    contents = f"by its own account it delayed a thread during {in_percent(fraction)} of the kept steps"
    if fraction > capture_rules().maximum_overhead_fraction:
        return Answer.NO, contents
    return Answer.YES, f"{contents}; the time that it adds to every launch is not included"


def judge_no_drops(captures: Captures) -> Judgement:
    rules = capture_rules()
    messages = _messages(captures)
    dropped = [text for text in messages if any(pattern.search(text) for pattern in rules.dropped)]
    if dropped:
        return Answer.NO, _quote(dropped)
    if captures.capabilities.get("diagnostics") != YES:
        return Answer.UNKNOWN, "the export contains no messages of the profiler"
    if any(pattern.search(text) for text in messages for pattern in rules.usual):
        return Answer.YES, "the profiler gives only its usual warning for captures that end before the program"
    return Answer.YES, "the profiler reports none"


def _messages(captures: Captures) -> list[str]:
    """The different messages of the profiler."""
    return list(dict.fromkeys(message for unparsed in captures.unparsed for message in unparsed.messages))


def _quote(messages: Sequence[str]) -> str:
    """The first of ``messages``, without private parts."""
    return "; ".join(" ".join(cut_sentence(text).split()) for text in messages[:_MAXIMUM_MESSAGES])


def _judge_capability(captures: Captures, name: str, contents: str) -> Judgement:
    """The answer by a capability of the traces; ``contents``: what they contain where they have it."""
    state = captures.capabilities.get(name, "not checked")
    return (Answer.YES, contents) if state == YES else (Answer.NO, state)


def _judge_reports(recorded: Sequence[bool], contents: str) -> Judgement:
    """The answer by whether each report with kernels records something."""
    answer = Answer.YES if recorded and all(recorded) else Answer.NO
    return answer, f"{contents} in {sum(recorded)} of {_reports(len(recorded))}"


def _reports(count: int) -> str:
    return f"{count} {plural(count, 'report')}"


JUDGES: dict[str, Callable[[Captures], Judgement]] = {
    "kernels": judge_kernels,
    "clean_steps": judge_clean_steps,
    "training_steps": judge_training_steps,
    "operator_sizes": judge_operator_sizes,
    "launches": judge_launches,
    "graph_nodes": lambda captures: _judge_capability(captures, "inside_cuda_graphs", "every kernel is visible"),
    "all_ranks": judge_all_ranks,
    "ranks_known": judge_ranks_known,
    "one_clock": judge_one_clock,
    "start_skew": judge_start_skew,
    "event_edges": judge_event_edges,
    "nccl_payload": judge_nccl_payload,
    "memory_usage": lambda captures: _judge_capability(captures, "gpu_memory_usage", "recorded"),
    "hardware_counters": judge_hardware_counters,
    "command_line": judge_command_line,
    "environment": judge_environment,
    "profiler_overhead": judge_profiler_overhead,
    "no_drops": judge_no_drops,
}
"""By capability of ``tables/capture.yaml``."""
