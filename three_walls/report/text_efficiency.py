"""What the run reaches of the machine's limits, for the terminal; a section without content is left out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from three_walls.model.report import Report
from three_walls.report.efficiency_views import MEMORY_FACTS, UTILIZATION_FACTS, copies_with_rate, known_facts
from three_walls.report.formats import (
    format_count,
    format_fact,
    format_flops,
    format_flops_rate,
    format_gemm,
    format_ms,
    format_rate,
    format_share,
)
from three_walls.report.text_parts import heading, indent, indent_table, make_table, plain

_SHAPES_SHOWN = 8

_SHORT_NAMES = {
    "mfu_fraction": "MFU of unprofiled steps",
    "mfu_traced_fraction": "MFU of the traced step",
    "memory_parameters_bytes": "parameters",
    "memory_gradients_bytes": "gradients",
    "memory_optimizer_bytes": "optimizer",
    "memory_activations_bytes": "activations",
    "memory_estimated_peak_bytes": "estimated peak",
    "memory_peak_fraction": "measured peak of device memory",
    "memory_headroom_bytes": "headroom",
    "driver_peak_bytes": "held through the driver",
}


def show_efficiency(report: Report) -> Iterator[RenderableType]:
    utilization = _list_facts(report, UTILIZATION_FACTS)
    copies = copies_with_rate(report)
    if not (report.efficiency or report.gemm_shapes or copies or utilization):
        return
    yield heading("Efficiency", "of the representative rank's step, against the machine's limits")
    if utilization:
        yield indent(plain(utilization))
    if report.efficiency:
        table = make_table("role", ">operations", ">time", ">achieved", ">of peak")
        for one in report.efficiency:
            speed = format_flops_rate(one.achieved_flops_per_s)
            table.add_row(
                plain(one.role), format_flops(one.flops), format_ms(one.ns), speed, format_share(one.fraction)
            )
        yield indent_table(table)
    yield from _show_shapes(report)
    for copy in copies:
        rate = format_rate(copy.bytes_per_s, copy.limit_bytes_per_s)
        large = f"{format_count(copy.large_calls)} of {format_count(copy.calls)} copies hold 1 MiB or more"
        yield indent(plain(f"{copy.copy_class}: {rate}; {large}"))


def _show_shapes(report: Report) -> Iterator[RenderableType]:
    """The shapes that take the most time; the page has all of them."""
    if not report.gemm_shapes:
        return
    known = report.facts.get("gemm_shapes_known_fraction")
    yield indent(plain(f"GEMMs by shape (m x k x n); sizes are known of {format_fact(known)} of their time"))
    table = make_table("weight", "direction", ">shape", ">calls", ">time", ">achieved", ">of peak")
    for one in report.gemm_shapes[:_SHAPES_SHOWN]:
        table.add_row(
            plain(one.role or "unknown"),
            plain(one.direction),
            format_gemm(one),
            format_count(one.calls),
            format_ms(one.ns),
            format_flops_rate(one.achieved_flops_per_s),
            format_share(one.fraction),
        )
    yield indent_table(table)
    left = report.gemm_shapes[_SHAPES_SHOWN:]
    if left:
        yield indent(plain(f"{len(left)} more shapes take {format_ms(sum(one.ns for one in left))} together"))


def show_memory(report: Report) -> Iterator[RenderableType]:
    memory = _list_facts(report, MEMORY_FACTS)
    if not memory:
        return
    yield heading(
        "Memory per GPU", "from the config, the fullest pipeline stage; the log and the trace where they tell"
    )
    yield indent(plain(memory))


def _list_facts(report: Report, names: tuple[str, ...]) -> str:
    return "; ".join(f"{_SHORT_NAMES[fact.name]} {format_fact(fact)}" for fact in known_facts(report, names))
