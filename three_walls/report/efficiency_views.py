"""What the pages show of efficiency: the facts beside its tables, the rows worth showing."""

from __future__ import annotations

from three_walls.model.fact import Fact
from three_walls.model.report import CopyBandwidth, Report

UTILIZATION_FACTS = ("mfu_fraction", "mfu_traced_fraction")
MEMORY_FACTS = (
    "memory_parameters_bytes",
    "memory_gradients_bytes",
    "memory_optimizer_bytes",
    "memory_activations_bytes",
    "memory_estimated_peak_bytes",
    "memory_peak_fraction",
    "memory_headroom_bytes",
    "driver_peak_bytes",
)


def known_facts(report: Report, names: tuple[str, ...]) -> tuple[Fact, ...]:
    """Those of ``names`` that have a value, in order."""
    return tuple(fact for fact in map(report.facts.get, names) if not fact.is_missing)


def copies_with_rate(report: Report) -> tuple[CopyBandwidth, ...]:
    """Kinds of copies with large ones among them: only those tell of the link."""
    return tuple(one for one in report.copies if one.bytes_per_s is not None)


def has_efficiency(report: Report) -> bool:
    tables = report.efficiency or report.gemm_shapes or report.copies
    return bool(tables or known_facts(report, (*UTILIZATION_FACTS, *MEMORY_FACTS)))
