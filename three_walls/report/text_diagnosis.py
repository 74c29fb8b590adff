"""Why the time went, for the terminal; a section without content is left out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from three_walls.model.report import Alignment, MoePart, RecomputedLayer, Report
from three_walls.report.diagnosis_views import (
    CARRYING_PARTS,
    ClassWait,
    MergedCause,
    count_moe_layers,
    merge_gap_causes,
    order_overlap_slowdown,
    order_stragglers,
    sum_moe_parts,
    sum_overlap_slowdown_ns,
    summarize_stages,
    summarize_waits,
)
from three_walls.report.formats import (
    UNKNOWN,
    format_awaited,
    format_count,
    format_ms,
    format_ms_range,
    format_rate,
    format_ratio,
    format_share,
    shorten,
    straggler_cause_words,
)
from three_walls.report.text_parts import heading, indent, indent_table, make_table, plain
from three_walls.report.views import find_representative_rank

_MOST_CAUSES = 8
_MOST_DETAILS = 2
_MOST_TAXES = 3
_MOST_CATEGORIES = 5
_KERNEL_COLUMNS = 36


def show_gap_causes(report: Report) -> Iterator[RenderableType]:
    rank = find_representative_rank(report)
    causes = () if rank is None else merge_gap_causes(rank)
    if rank is None or not causes:
        return
    total = format_ms(sum(one.ns for one in causes))
    yield heading("Why nothing computed", f"rank {rank.rank}: {total} of its median step without a compute kernel")
    table = make_table("cause", ">time", ">share", "most of it")
    table.columns[0].max_width = 28
    for one in causes[:_MOST_CAUSES]:
        table.add_row(plain(one.cause), format_ms(one.ns), format_share(one.fraction), plain(_list_details(one)))
    rest = causes[_MOST_CAUSES:]
    if rest:
        fractions = [one.fraction for one in rest if one.fraction is not None]
        share = format_share(sum(fractions) if fractions else None)
        table.add_row(f"{len(rest)} more", format_ms(sum(one.ns for one in rest)), share, "", style="dim")
    yield indent_table(table)


def _list_details(merged: MergedCause) -> str:
    """The largest details with their time; a detail that is the whole cause needs none."""
    if len(merged.details) == 1 and merged.details[0].ns == merged.ns:
        return merged.details[0].detail
    return "; ".join(f"{one.detail} {format_ms(one.ns)}" for one in merged.details[:_MOST_DETAILS])


def show_waits(report: Report) -> Iterator[RenderableType]:
    """One rank's own guess at its waiting is no answer to "for whom": it is shown only when calls were matched."""
    is_worth_it = len(report.ranks) > 1 or any(wait.resolved for wait in report.waits)
    if not is_worth_it or not (report.stragglers or report.waits or report.alignment):
        return
    yield heading("Who waited for whom", "per step")
    for one in order_stragglers(report):
        line = plain(f"rank {one.rank} made the others wait {format_ms(one.late_ns)} a step: ", "bold")
        line.append(plain("cause unknown" if one.cause == UNKNOWN else straggler_cause_words(one.cause), "bold yellow"))
        yield indent(line.append(plain(f" - {one.evidence}" if one.evidence else "", "not bold")))
    waits = summarize_waits(report)
    if waits:
        table = make_table("class", ">wait", ">transfer", "mostly for", "resolved", "split by")
        for row in waits:
            table.add_row(plain(row.communication_class), *_describe_wait(row))
        yield indent_table(table)
    if report.alignment is not None:
        yield indent(plain(_describe_alignment(report.alignment), "dim"))


def _describe_wait(row: ClassWait) -> tuple[str | Text, ...]:
    is_mixed = 0 < row.unknown_count < row.rank_count
    unknown = (f"{UNKNOWN} on {row.unknown_count}",) if is_mixed else ()
    return (
        format_ms_range(row.wait_low_ns, row.wait_high_ns),
        format_ms_range(row.transfer_low_ns, row.transfer_high_ns),
        format_awaited(row.mostly_for, row.is_without_wait),
        f"{row.resolved_count} of {row.rank_count}",
        plain("; ".join((*row.notes, *unknown))),
    )


def _describe_alignment(alignment: Alignment) -> str:
    if alignment.residual_ns_p50 is None and alignment.residual_ns_p95 is None:
        return f"Clocks: {alignment.method}; how well they agree is {UNKNOWN}"
    half, most = format_ms(alignment.residual_ns_p50), format_ms(alignment.residual_ns_p95)
    return f"Clocks: {alignment.method}; matched ends {half} apart (median), {most} (95th percentile)"


def show_pipeline(report: Report) -> Iterator[RenderableType]:
    rows = summarize_stages(report)
    if not rows:
        return
    found, expected = (
        format_share(report.facts.number(name))
        for name in ("pipeline_bubble_fraction", "pipeline_bubble_expected_fraction")
    )
    yield heading("Pipeline", f"bubble {found} of the representative step; an even schedule leaves {expected}")
    table = make_table("stage", "phase", ">time", ">p2p exposed", ">bubble", "ranks", "note")
    for row in rows:
        stage = UNKNOWN if row.stage is None else str(row.stage)
        table.add_row(
            stage,
            row.phase,
            format_ms_range(row.low, row.high),
            format_ms_range(row.p2p_low_ns, row.p2p_high_ns),
            format_ms_range(row.bubble_low_ns, row.bubble_high_ns),
            str(row.rank_count),
            plain("; ".join(row.notes)),
        )
    yield indent_table(table)


def show_moe_layers(report: Report) -> Iterator[RenderableType]:
    parts = sum_moe_parts(report)
    if not parts:
        return
    layers = count_moe_layers(report)
    yield heading("MoE layers", f"the sum of {layers} layers" if layers else "all layers together")
    table = make_table("direction", "part", ">time", ">exposed", ">calls", ">bandwidth of limit")
    for one in parts:
        times = format_ms(one.ns), format_ms(one.exposed_ns)
        table.add_row(plain(one.direction), plain(one.part), *times, format_count(one.calls), _describe_rate(one))
    yield indent_table(table)


def _describe_rate(part: MoePart) -> str:
    if part.bytes_per_s is None and part.part not in CARRYING_PARTS:
        return ""
    return format_rate(part.bytes_per_s, part.limit_bytes_per_s)


def show_overlap_slowdown(report: Report) -> Iterator[RenderableType]:
    taxes = [one for one in order_overlap_slowdown(report) if one.slowdown_ns > 0]
    if not taxes:
        return
    aside = f"GEMMs run slower beside communication: {format_ms(sum_overlap_slowdown_ns(report))} a step"
    yield heading("Overlap tax", aside)
    table = make_table("kernel", "grid", ">alone", ">beside", ">slower", ">calls beside", ">tax")
    for one in taxes[:_MOST_TAXES]:
        slower = format_ratio(one.concurrent_ns / one.alone_ns if one.alone_ns else None)
        times = format_ms(one.alone_ns), format_ms(one.concurrent_ns), slower
        name = plain(shorten(one.kernel, _KERNEL_COLUMNS))
        table.add_row(name, plain(one.grid), *times, format_count(one.concurrent_calls), format_ms(one.slowdown_ns))
    if len(taxes) > _MOST_TAXES:
        table.add_row(plain(f"{len(taxes) - _MOST_TAXES} more", "dim"))
    yield indent_table(table)


def show_recompute(report: Report) -> Iterator[RenderableType]:
    replayed = report.recompute_layers
    if not replayed:
        return
    total = format_ms(sum(one.ns for one in replayed))
    yield heading("Recompute", f"forward work replayed in backward: {total} a step")
    table = make_table("layer", "kind", ">time", ">replays")
    for one in replayed:
        table.add_row(_name_layer(one), plain(one.kind), format_ms(one.ns), format_count(one.calls))
    yield indent_table(table)


def _name_layer(one: RecomputedLayer) -> str:
    return "all together" if one.layer is None else str(one.layer)


def show_graph_coverage(report: Report) -> Iterator[RenderableType]:
    coverage = report.graph_coverage
    if coverage is None:
        return
    told = f"{format_share(coverage.fraction)} of the kernels run inside" if not coverage.reason else UNKNOWN
    yield heading("CUDA graphs", told)
    if coverage.reason:
        yield indent(plain(coverage.reason))
    if not coverage.outside:
        return
    table = make_table("outside graphs", ">kernels", ">launch calls")
    for one in coverage.outside[:_MOST_CATEGORIES]:
        table.add_row(plain(one.category), format_count(one.calls), format_ms(one.host_ns))
    if len(coverage.outside) > _MOST_CATEGORIES:
        table.add_row(plain(f"{len(coverage.outside) - _MOST_CATEGORIES} more", "dim"))
    yield indent_table(table)
