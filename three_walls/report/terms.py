"""The terms of a report, each defined once: the help in the HTML report and the glossary are made from these.

Buckets are defined in ``buckets.py``, facts where they are measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.tables.buckets import BUCKET_BY_NAME


@dataclass(frozen=True, slots=True)
class Term:
    """A word that the report uses with a single meaning."""

    name: str
    definition: str


TERMS: tuple[Term, ...] = (
    Term(
        "Budget",
        "Every nanosecond of a step has one owner, a bucket. Where several operations run at once, compute owns the "
        "instant before communication, communication before copies, and all of them before idle time. The buckets "
        "therefore sum to the step exactly.",
    ),
    Term(
        "Representative step",
        "The median kept step of the rank that waited least for its peers. The other ranks wait for that rank, so it "
        "sets the pace of the run.",
    ),
    Term(
        "Exposed",
        "Communication while no compute kernel runs on the same GPU. Exposed is not blocking: it may delay nothing. "
        "Nor is it transfer: part of it may be waiting for peers that arrive later.",
    ),
    Term("Hidden", "Communication while some compute kernel runs on the same GPU."),
    Term("Busy", "The time in which a communication class runs at all: exposed plus hidden."),
    Term("Launch-starved", f"{BUCKET_BY_NAME['launch_starved'].definition} Also called launch-bound."),
    Term("Host-blocked", BUCKET_BY_NAME["host_blocked"].definition),
    Term(
        "Waiting",
        "The part of a collective before its last rank arrives. The rest is transfer. Only the rank that arrives last "
        "can shorten the waiting of the others.",
    ),
    Term(
        "Resolved",
        "Waiting and transfer were separated by matching the calls of each collective on all ranks of its group, on a "
        "common clock. Otherwise the split is estimated or unknown.",
    ),
    Term("Straggler", "A rank that arrives last at collectives and makes the others wait."),
    Term(
        "Bubble",
        "Time in which a pipeline stage waits for other stages, with no compute kernel running and no tokens in "
        "transit.",
    ),
    Term(
        "Recoverable",
        "The most that the edits of one wall could save. The verdict is the wall with the most recoverable time; it is "
        "withheld where the trace cannot decide.",
    ),
    Term(
        "Upper bound",
        "The most that can be saved. How much of it an edit saves was not measured, so the plan counts it only in the "
        "low end of the step after it, and ranks it after every gain with a likely value.",
    ),
    Term(
        "Gain",
        "Time that one step may save: low, likely, high. Each gain of the plan applies to the step that the earlier "
        "entries leave.",
    ),
    Term(
        "Perturbation",
        "How much longer the traced step is than the log's unprofiled steps. The profiler slows every kernel launch, "
        "so the difference is taken off the host's recoverable time first. Judge an edit by step times without the "
        "profiler.",
    ),
    Term(
        "Known-good recipe",
        "NVIDIA's benchmark recipe nearest to the run by GPU, model shape and number of GPUs. It is context for the "
        "plan: none of its settings is a measured gain here.",
    ),
    Term("Unknown", "Not measured, which never means zero. The reason is given next to it."),
)

GAIN_BASES: dict[str, str] = {
    "replayed": "The captured step was replayed as a graph of what waits for what, before and after the edit, without "
    "what the profiler added.",
    "measured": "The share of the time that the edit saves was measured on a pair of runs, before and after.",
    "modelled": "The share was calculated from facts of this trace.",
    "range": "Between nothing and a known maximum; the likely value is a judgement.",
    "upper_bound": "Up to the high end. How much of it is saved was not measured, so there is no likely value.",
    "frees_memory": "The edit saves memory, not time. It may cost a share of the step.",
    "none": "No gain is estimated; the explanation states why.",
}
"""Basis of a gain -> what its low, likely and high values mean."""
