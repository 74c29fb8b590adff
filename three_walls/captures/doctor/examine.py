"""Reads the captures of one run and says what they can support."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from three_walls.captures.doctor.capture_facts import CaptureFacts, Extras, measure
from three_walls.captures.doctor.checks import JUDGES
from three_walls.captures.launch.recipe import profiler_words
from three_walls.captures.launch.settings import spell_settings
from three_walls.inputs.nsys.capabilities import common_capabilities
from three_walls.inputs.nsys.export import NsysExport
from three_walls.inputs.nsys.nccl_payload import holds_payloads
from three_walls.inputs.nsys.range_window import has_operator_sizes
from three_walls.inputs.nsys.reader import Trace, read_trace
from three_walls.inputs.nsys.recorded_environment import launch_environment
from three_walls.inputs.nsys.source import find_traces, plain_sqlite
from three_walls.model.config import ConfigData
from three_walls.model.examination import Answer, Check, Examination
from three_walls.tables.capture import BRIDGE, MEGATRON_LM, Capability, CaptureRules, capture_rules
from three_walls.tables.kernels import load_api_patterns, load_kernel_patterns, union_of
from three_walls.timeline.timeline import Timeline, build_timeline, wanted_ranges

_PROGRAM = "python pretrain_gpt.py ..."
_MOST_LISTED_RANKS = 64
"""Of a larger run the ranks to profile are an example: nobody captures them all."""


def examine(paths: Sequence[Path], step_range: str | None = None) -> Examination:
    """What the exports ``paths`` (files or directories of one run) support; InputError where one cannot be read."""
    files = find_traces(list(paths))
    traces: list[Trace] = []
    extras: list[Extras] = []
    api_patterns = load_api_patterns()
    rank_indices = 0
    for order, path in enumerate(files):
        traces.append(
            read_trace(path, order, rank_indices, wanted_ranges(step_range), union_of(api_patterns, "graph_launch"))
        )
        rank_indices += len(traces[-1].ranks)
        extras.append(_read_extras(path))
    timeline = _timeline([one for one in traces if one.ranks], union_of(api_patterns, "synchronize"), step_range)
    facts = measure(traces, timeline, extras, common_capabilities([one.capabilities for one in traces]))
    return judge(facts, traces, capture_rules())


def _timeline(traces: Sequence[Trace], synchronize: re.Pattern[str], step_range: str | None) -> Timeline | None:
    if not traces:
        return None
    return build_timeline(traces, load_kernel_patterns(), synchronize, traces[0].config, step_range)


def _read_extras(path: Path) -> Extras:
    with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
        texts = (
            export.rows("SELECT DISTINCT text FROM DIAGNOSTIC_EVENT") if export.has("DIAGNOSTIC_EVENT", "text") else []
        )
        return Extras(
            messages=tuple(sorted(str(text) for (text,) in texts if text is not None)),
            has_nccl_payload=holds_payloads(export),
            has_environment=bool(launch_environment(export)),
            has_operator_sizes=has_operator_sizes(export),
        )


def judge(facts: CaptureFacts, traces: Sequence[Trace], rules: CaptureRules) -> Examination:
    """Every capability of ``rules``, answered from ``facts``, and one command for all that is missing."""
    checks = tuple(_check(capability, facts, rules) for capability in rules.capabilities.values())
    missing = [rules.capabilities[check.name] for check in checks if check.answer is Answer.NO]
    is_missing = any(one.nsys or one.settings for one in missing)
    memory = any(option == "--cuda-memory-usage=true" for one in missing for option in one.nsys)
    return Examination(
        inputs=tuple(trace.input for trace in traces),
        ranks=len(facts.ranks),
        checks=checks,
        recapture=" ".join([*profiler_words("torchrun", memory), _PROGRAM]) if is_missing else None,
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
    """Settings of all of them; the ranks to profile are those of the run, where it says how many there are."""
    settings: dict[str, ConfigData] = {}
    for capability in capabilities:
        if framework in capability.frameworks:
            settings.update(capability.settings)
    if "profile_ranks" in settings and facts.world_size is not None and facts.world_size <= _MOST_LISTED_RANKS:
        settings["profile_ranks"] = tuple(range(facts.world_size))
    return spell_settings({"use_nsys_profiler": True, **settings} if settings else {}, framework)
