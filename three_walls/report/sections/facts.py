"""What the words and numbers mean: every fact that rules compare, and the terms of a report."""

from __future__ import annotations

from three_walls.lib.fact import Fact
from three_walls.lib.text import format_name
from three_walls.report.formats import format_fact
from three_walls.report.report import Report
from three_walls.report.section import ROW, Cell, Column, Definitions, Note, Section, Table, Terminal, Text
from three_walls.tables.buckets import BUCKET_BY_NAME

TERMS: dict[str, str] = {
    "Budget": "Every nanosecond of a step has one owner, a bucket. Where several operations run at once, compute owns "
    "the instant before communication, communication before copies, and all of them before idle time. The buckets "
    "therefore sum to the step exactly.",
    "Representative step": "The median kept step of the rank that waited least for its peers. The other ranks wait for "
    "that rank, so it sets the pace of the run.",
    "Exposed": "Communication while no compute kernel runs on the same GPU. Exposed is not blocking: it may delay "
    "nothing. Nor is it transfer: part of it may be waiting for peers that arrive later.",
    "Hidden": "Communication while some compute kernel runs on the same GPU.",
    "Busy": "The time in which a communication class runs at all: exposed plus hidden.",
    "Launch-starved": f"{BUCKET_BY_NAME['launch_starved'].definition} Also called launch-bound.",
    "Host-blocked": BUCKET_BY_NAME["host_blocked"].definition,
    "Waiting": "The part of a collective before its last rank arrives. The rest is transfer. Only the rank that "
    "arrives last can shorten the waiting of the others.",
    "Resolved": "Waiting and transfer were separated by matching the calls of each collective on all ranks of its "
    "group, on a common clock. Otherwise the split is estimated or unknown.",
    "Straggler": "A rank that arrives last at collectives and makes the others wait.",
    "Bubble": "Time in which a pipeline stage waits for other stages, with no compute kernel running and no tokens in "
    "transit.",
    "Recoverable": "The most that the edits of one wall could save. The verdict is the wall with the most recoverable "
    "time; it is withheld where the trace cannot decide.",
    "Upper bound": "A time of the step that an edit cannot save more than, where no replay tells how much of it is "
    "saved. The plan has no such edits: they stand among the findings.",
    "Gain": "Time that one step may save: low, likely, high. Each gain of the plan applies to the step that the "
    "earlier entries leave.",
    "Perturbation": "How much longer the traced step is than the log's unprofiled steps. The profiler slows every "
    "kernel launch, so the difference is taken off the host's recoverable time first. Judge an edit by step times "
    "without the profiler.",
    "Known-good recipe": "NVIDIA's benchmark recipe nearest to the run by GPU, model shape and number of GPUs. It is "
    "context for the plan: none of its settings is a measured gain here.",
    "Unknown": "Not measured, which never means zero. The reason is given next to it.",
}
"""A word that the report uses with one meaning -> its definition, for the page's help and the glossary."""

GAIN_BASES: dict[str, str] = {
    "replayed": "The captured step was replayed as a graph of what waits for what, before and after the edit, without "
    "what the profiler added.",
    "upper_bound": "No replay tells what the edit changes: it saves at most the high end, a time of the step.",
    "frees_memory": "The edit saves memory, not time. The share of the step that it costs is by replay.",
    "none": "No gain is estimated; the explanation states why.",
}
"""Basis of a gain -> what its low, likely and high values mean."""


def facts(report: Report) -> Section:
    """Facts in the order of their definition; settings of the run are in the configuration."""
    columns = (
        Column("Fact", ROW, _name),
        Column("Value", ROW, format_fact, is_right=True),
        Column("Definition", ROW, _define, width="wide"),
    )
    measured = [fact for fact in report.facts.facts.values() if not fact.name.startswith(("config.", "env."))]
    return Section(
        "facts",
        "Facts",
        (Table("facts", columns, measured, anchor=lambda fact: f"fact-{fact.name}"),),
        lead="The named numbers that the rules compare. Hover over a name to see what it must not be confused with.",
        link="Facts",
        is_folded=True,
        terminal=Terminal.NEVER,
    )


def _name(fact: Fact) -> Text:
    definition = fact.definition
    if definition is None:
        return Text(fact.name, "code")
    other = f" Not the same as: {definition.not_the_same_as}" if definition.not_the_same_as else ""
    return Text(fact.name, "code", f"{definition.meaning}{other}")


def _define(fact: Fact) -> Cell:
    meaning = Text(fact.definition.meaning if fact.definition else "", "muted")
    return (meaning, Text(f"Missing: {fact.missing_reason}", "missing")) if fact.is_missing else meaning


def reading(_: Report) -> Section:
    """Terms, then the bases that a gain can have."""
    bases = tuple((format_name(basis).capitalize(), meaning) for basis, meaning in GAIN_BASES.items())
    blocks = (Definitions(tuple(TERMS.items())), Note("Basis of a gain", role="heading"), Definitions(bases))
    return Section(
        "reading",
        "How to read this",
        blocks,
        link="How to read",
        terminal=Terminal.NEVER,
        role="reading",
        is_folded=True,
    )
