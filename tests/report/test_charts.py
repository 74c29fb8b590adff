"""Charts agree with the tables, have a colour for everything, and are valid plotly too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.sample_report import MS, without_plan
from three_walls.facts.fact_rows import GemmShape
from three_walls.lib.fact import Fact, FactSheet
from three_walls.memory_snapshot.snapshot import MemoryMoment, MemorySnapshot
from three_walls.report.charts import BUCKET_COLOURS, GROUP_COLOURS, MILLISECONDS, Bars, HeatMap, Lines, Plot, Roofline
from three_walls.report.plotly_figures import plotly_figures
from three_walls.report.report import Report
from three_walls.report.section import Chart, nested_blocks
from three_walls.report.sections import make_sections
from three_walls.report.sections.gaps import CAUSES, colour_causes, label_cause
from three_walls.report.svg import place_bars, place_lines, place_roofline
from three_walls.step.compute_gaps import Cause
from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKETS, Group


def draw_charts(report: Report) -> dict[str, Plot]:
    blocks = (block for section in make_sections(report) for block in nested_blocks(section.blocks))
    return {block.name: block.plot for block in blocks if isinstance(block, Chart)}


def bars_of(report: Report, name: str) -> Bars:
    plot = draw_charts(report)[name]
    assert isinstance(plot, Bars)
    return plot


def test_every_chart_is_a_plotly_figure_of_the_same_values(report: Report) -> None:
    figures = plotly_figures(report)
    assert list(figures) == list(draw_charts(report))
    (row,) = bars_of(report, "budget").rows
    assert [trace.x[0] for trace in figures["budget"].data] == [piece.length / MS for piece in row.pieces]
    assert {type(plot) for plot in draw_charts(report).values()} >= {Bars, HeatMap}


def test_every_bucket_has_a_colour_of_its_own() -> None:
    assert list(BUCKET_COLOURS) == [bucket.name for bucket in BUCKETS]
    assert len(set(BUCKET_COLOURS.values())) == len(BUCKETS)


def test_every_group_has_a_colour() -> None:
    assert set(GROUP_COLOURS) == set(Group)


def test_the_budget_bar_holds_the_whole_step(report: Report) -> None:
    (row,) = bars_of(report, "budget").rows
    assert {piece.name: piece.length for piece in row.pieces} == {
        BUCKET_BY_NAME[row.bucket].title: row.ns for row in report.budget if row.ns
    }
    assert row.pieces[-1].start + row.pieces[-1].length == 640 * MS


def test_the_bar_of_gaps_holds_all_time_without_a_compute_kernel(report: Report) -> None:
    (row,) = bars_of(report, "gaps").rows
    lengths = {piece.name: piece.length for piece in row.pieces}
    assert lengths["waiting for an operation"] == 187 * MS
    assert sum(lengths.values()) == 237 * MS


def test_every_cause_has_a_meaning_and_a_colour_of_its_own() -> None:
    assert set(CAUSES) == set(Cause)
    assert (
        len({look.colour for look in CAUSES.values()}) == len({look.label for look in CAUSES.values()}) == len(CAUSES)
    )


def test_a_cause_that_is_not_listed_is_shown_by_its_name() -> None:
    colours = colour_causes(["blocking", *(f"cause {number}" for number in range(20))])
    assert len(set(colours.values())) > 5
    assert colours["cause 18"] == colours["cause 19"]
    assert label_cause("cause 1") == "cause 1"


def test_exposed_and_hidden_stack_to_busy(report: Report) -> None:
    row = bars_of(report, "communication").rows[0]
    assert row.label == "expert all-to-all"
    assert [(piece.name, piece.start, piece.length) for piece in row.pieces] == [
        ("exposed", 0, 150 * MS),
        ("hidden", 150 * MS, 21 * MS),
    ]


def test_the_waterfall_goes_from_the_step_now_to_the_step_after_with_the_edits_on_its_axis(report: Report) -> None:
    chart = bars_of(replace(report, log=None), "plan")
    first, *entries, last = chart.rows
    assert (first.label, first.pieces[0].length) == ("Step now", 640 * MS)
    assert [row.label for row in entries] == [f"{step.order}. {step.finding.title}" for step in report.plan]
    assert [(piece.start, piece.length) for piece in entries[0].pieces][:1] == [(551 * MS, 89 * MS)]
    assert [(piece.start, piece.length) for piece in last.pieces] == [(0, 492 * MS), (492 * MS, 112 * MS)]


def test_the_waterfall_is_of_the_logged_step_where_there_is_one(report: Report) -> None:
    chart = bars_of(report, "plan")
    assert chart.rows[0].value == "612 ms"
    assert chart.end == 612 * MS


def test_layers_and_parts_are_a_heat_map_darker_where_longer(report: Report) -> None:
    plot = draw_charts(report)["moe_layers"]
    assert isinstance(plot, HeatMap)
    depths = [cell.depth for cells in plot.cells for cell in cells if cell is not None]
    assert max(depths) == 1
    assert all(len(cells) == len(plot.columns) for cells in plot.cells)


def test_memory_is_drawn_against_the_capacity_and_what_is_left_is_free(report: Report) -> None:
    assert "memory" not in draw_charts(report)  # no estimate and no measurement
    sizes = {"gpu.memory_bytes": 80, "memory_parameters_bytes": 10, "memory_optimizer_bytes": 30}
    facts = [Fact(name, gib * 2**30, "bytes") for name, gib in sizes.items()]
    (row,) = bars_of(replace(report, facts=FactSheet.of(facts)), "memory").rows
    assert [(piece.name, piece.length / 2**30) for piece in row.pieces] == [
        ("parameters", 10),
        ("optimizer", 30),
        ("free", 40),
    ]


SHAPE = GemmShape(
    "query",
    "forward",
    1,
    (4096, 4096),
    (4096, 4096),
    (4096, 4096),
    1,
    2 * 4096**3,
    MS,
    1.37e14,
    "bf16",
    10**15,
    0.137,
    "k",
)


def test_a_gemm_is_below_the_roof_at_its_operations_per_byte(report: Report) -> None:
    assert "roofline" not in draw_charts(report)
    plot = draw_charts(replace(report, gemm_shapes=(SHAPE,)))["roofline"]
    assert isinstance(plot, Roofline)
    (point,) = plot.points
    assert point.intensity == pytest.approx(4096 / 3)  # 2 n^3 operations, 3 n^2 elements of 2 bytes
    assert plot.peaks == (("bf16", 1e15),)
    placed = place_roofline(plot)
    assert all(placed["left"] <= p["x"] <= placed["right"] for p in placed["points"])
    assert all(placed["top"] <= p["y"] <= placed["bottom"] for p in placed["points"])
    without_peak = replace(report, gemm_shapes=(replace(SHAPE, peak_flops_per_s=None),))
    assert "roofline" not in draw_charts(without_peak)


def test_bars_are_placed_in_percent_and_labels_only_where_they_fit(report: Report) -> None:
    placed = place_bars(bars_of(report, "budget"))
    (row,) = placed["rows"]
    last = row["pieces"][-1]
    assert last["x"] + last["width"] == pytest.approx(100, abs=0.01)
    labels = {piece["piece"].name: piece["label"] for piece in row["pieces"]}
    assert labels["grouped GEMM"] == "grouped GEMM"
    assert "" in labels.values()
    assert [text for _, text, _ in placed["ticks"]][:3] == ["0 ms", "100 ms", "200 ms"]


@pytest.mark.parametrize(
    ("end", "texts"),
    [(233, ["0 ms", "50 ms"]), (1.7, ["0.00 ms", "0.25 ms"]), (9, ["0 ms", "2 ms"]), (20, ["0.0 ms", "2.5 ms"])],
)
def test_ticks_are_round_numbers(end: float, texts: list[str]) -> None:
    assert [text for _, text in Bars((), end * MS, MILLISECONDS).ticks][:2] == texts


def test_charts_without_numbers_are_left_out(report: Report, abstained: Report) -> None:
    assert draw_charts(abstained) == {}
    assert "plan" not in draw_charts(without_plan(report))


def test_memory_over_time_is_drawn_where_a_snapshot_has_its_history(report: Report) -> None:
    moments = tuple(MemoryMoment(number, number << 30, 8 << 30) for number in (1, 2, 4))
    shown = MemorySnapshot(
        "s.pickle", "0", 0, None, 4 << 30, 8 << 30, 8 << 30, 0.5, 1, 8 << 30, 1, (), (), (), 0, moments
    )
    sized = replace(report, memory_snapshot=shown, facts=FactSheet.of([Fact("gpu.memory_bytes", 80 << 30, "bytes")]))
    plot = draw_charts(sized)["memory_history"]
    assert isinstance(plot, Lines)
    assert (plot.places, plot.limit) == ((1, 2, 4), 80 << 30)
    placed = place_lines(plot)
    assert placed["summary"] == "reserved at most 8.0 GiB; allocated at most 4.0 GiB; memory of the device 80.0 GiB"
    assert placed["areas"][1][2].endswith("1000,950 1000,1000")  # 4 of 80 GiB
    assert plotly_figures(sized)["memory_history"].data[1].y == (1, 2, 4)
    assert "memory_history" not in draw_charts(replace(sized, memory_snapshot=replace(shown, history=())))
