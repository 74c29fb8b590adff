"""In what two runs are unlike, other than in what was tuned: model, GPU, tokens, layout, and how they were captured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from three_walls.lib.load_documents import Pattern, Text, load_table, raise_contradictions, suggest
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import TABLES_DIR
from three_walls.lib.text import format_name, format_setting
from three_walls.report.comparison import Severity, Unlikeness
from three_walls.report.report import Report
from three_walls.runs.compared_run import Run
from three_walls.runs.step_change import compare_work
from three_walls.tables.config_keys import config_keys

_YES = "yes"


@dataclass(frozen=True, slots=True)
class ComparisonRules:
    """What makes two runs not comparable: ``tables/comparison.yaml``."""

    model: tuple[Text, ...]
    work: tuple[Text, ...]
    layout: tuple[Text, ...]
    capture: Mapping[Text, Text]
    ignored: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        known = config_keys().keys
        raise_contradictions(
            ((section, place), f"{key} is not in config-keys.yaml{suggest(key, known)}")
            for section, keys in (("model", self.model), ("work", self.work), ("layout", self.layout))
            for place, key in enumerate(keys)
            if key not in known
        )

    def ignores(self, name: str) -> bool:
        """Whether the setting or variable ``name`` says nothing about the work of a step."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


@cache
def comparison_rules() -> ComparisonRules:
    """The rules that ship with the program."""
    return load_table(TABLES_DIR / "comparison.yaml", ComparisonRules)


def find_unlikeness(before: Run, after: Run) -> tuple[Unlikeness, ...]:
    """What limits the comparison of ``before`` with ``after``, refusals first."""
    differences = [
        *_compare_model(before, after),
        *_compare_tokens(before, after),
        *_compare_layout(before, after),
    ]
    if before.has_trace and after.has_trace:
        differences += _compare_captures(before.report, after.report)
    else:
        is_one = before.has_trace or after.has_trace
        given = f"Of {'AFTER' if before.has_trace else 'BEFORE'} only a log was" if is_one else "Only logs were"
        differences.append(_warn("logs-alone", f"{given} given: the steps are compared, nothing else."))
    return tuple(sorted(differences, key=lambda item: item.severity is not Severity.REFUSAL))


def _warn(code: str, message: str) -> Unlikeness:
    return Unlikeness(code, Severity.WARNING, message)


def _compare_model(before: Run, after: Run) -> Iterator[Unlikeness]:
    """The model, and the GPU that it was trained on."""
    keys = comparison_rules().model
    if differing := _differing(keys, before.report, after.report):
        message = f"The runs train different models: {_list_values(differing)}."
        yield Unlikeness("different-model", Severity.REFUSAL, message)
    elif not any(before.report.config.knows(key) and after.report.config.knows(key) for key in keys):
        yield _warn("model-not-known", "Nothing shows that both runs train the same model: no config states its sizes.")
    if before.gpu and after.gpu and before.gpu != after.gpu:
        message = f"The runs used different GPUs: {before.gpu} and {after.gpu}."
        yield Unlikeness("different-gpu", Severity.REFUSAL, message)


def _compare_tokens(before: Run, after: Run) -> Iterator[Unlikeness]:
    if differing := _differing(("seq_length",), before.report, after.report):
        yield _warn("different-sequence", f"Attention does other work per token: {_list_values(differing)}.")
    if before.tokens_per_step and after.tokens_per_step and compare_work(before, after) is not None:
        yield _warn(
            "different-tokens",
            f"The steps process different numbers of tokens per GPU (in all {before.tokens_per_step:,} and "
            f"{after.tokens_per_step:,}): the verdict is per token; buckets and kernels are per step.",
        )
    if differing := _differing(comparison_rules().work, before.report, after.report):
        yield _warn("different-work", f"The experts have other work: {_list_values(differing)}.")
    if before.tokens_per_step is None or after.tokens_per_step is None:
        yield _warn("tokens-not-known", "Not both configs state the tokens per step; they are taken to be equal.")


def _compare_layout(before: Run, after: Run) -> Iterator[Unlikeness]:
    differing = _differing(comparison_rules().layout, before.report, after.report)
    if before.world_size and after.world_size and before.world_size != after.world_size:
        differing.insert(0, ("world size", before.world_size, after.world_size))
    if differing:
        yield _warn("different-layout", f"A rank has other work in each run: {_list_values(differing)}.")


def _compare_captures(before: Report, after: Report) -> Iterator[Unlikeness]:
    for name, consequence in comparison_rules().capture.items():
        states = [report.capabilities.get(name) for report in (before, after)]
        if None not in states and (states[0] == _YES) != (states[1] == _YES):
            holder = "BEFORE" if states[0] == _YES else "AFTER"
            yield _warn("different-capture", f"Only the capture of {holder} has {format_name(name)}: {consequence}.")
    whole = [report.graph_coverage.whole_graphs if report.graph_coverage else 0 for report in (before, after)]
    if bool(whole[0]) != bool(whole[1]):
        holder = "BEFORE" if whole[0] else "AFTER"
        message = f"Only {holder} recorded CUDA graphs whole: its kernels are one bucket (--cuda-graph-trace=node)."
        yield _warn("different-graph-capture", message)
    ranks = [report.representative_rank for report in (before, after)]
    if ranks[0] and ranks[1] and ranks[0].rank != ranks[1].rank:
        yield _warn("different-rank", f"The budgets are of different ranks: {ranks[0].rank} and {ranks[1].rank}.")
    if before.step.source != after.step.source and before.budget and after.budget:
        sources = f"by {before.step.source}, and by {after.step.source}"
        yield _warn("different-boundaries", f"The boundaries of the steps were found by different marks: {sources}.")
    releases = [
        sorted({file.nsys_version for file in report.inputs if file.nsys_version}) for report in (before, after)
    ]
    if releases[0] and releases[1] and releases[0] != releases[1]:
        names = f"{', '.join(releases[0])} and {', '.join(releases[1])}"
        yield _warn("different-profiler", f"Different releases of Nsight Systems recorded the runs: {names}.")
    if before.tool_version != after.tool_version:
        versions = f"{before.tool_version} and {after.tool_version}"
        yield _warn("different-version", f"Different releases of three-walls made the reports: {versions}.")


def _differing(keys: Sequence[str], before: Report, after: Report) -> list[tuple[str, ConfigData, ConfigData]]:
    """The ``keys`` that both configs state with different values."""
    both = [key for key in keys if before.config.knows(key) and after.config.knows(key)]
    values = [(key, before.config.get(key), after.config.get(key)) for key in both]
    return [(key, was, now) for key, was, now in values if was != now]


def _list_values(differing: Sequence[tuple[str, ConfigData, ConfigData]]) -> str:
    return ", ".join(f"{key} {format_setting(before)} and {format_setting(after)}" for key, before, after in differing)
