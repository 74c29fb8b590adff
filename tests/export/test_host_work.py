"""Host time outside of CUDA calls by place, of a small step, computed by head. Times are in us."""

from __future__ import annotations

from pathlib import Path

from tests.trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder
from three_walls import analyze
from three_walls.export.step_detail_rows import HostWorkRow
from three_walls.step.step_rows import RankReport

US = 1_000


def build(*ranges: tuple[str, int, int]) -> TraceBuilder:
    """Five steps of 1,000 us; each begins with a GEMM, which was launched before it.

    An addition is launched at 480 and runs 490-500, and the update at 880 and runs 890-990; launch calls take 1 ns. The
    host synchronizes from 500 to 600 in vain. ``ranges``: text, start and end in each step.
    """
    builder = TraceBuilder()
    for number in range(5):
        at = (1 + number) * 1_000 * US
        builder.nvtx(f"training_step_{number}", at - 20 * US, at + 970 * US)
        for text, start, end in ranges:
            builder.nvtx(text, at + start * US, at + end * US)
        builder.kernel(GEMM, at, at + 100 * US, launched=at - 10 * US)
        builder.kernel(POINTWISE, at + 490 * US, at + 500 * US, launched=at + 480 * US)
        builder.api("cudaStreamSynchronize_v3020", at + 500 * US, at + 600 * US)
        builder.kernel(ADAM, at + 890 * US, at + 990 * US, launched=at + 880 * US)
    return builder


def measure(folder: Path, builder: TraceBuilder) -> tuple[tuple[HostWorkRow, ...], RankReport]:
    report = analyze(builder.write(folder / "rank0.sqlite"))
    return report.host_work, report.ranks[0]


def find(rows: tuple[HostWorkRow, ...], around: str, operator: str = "") -> list[tuple[int, int, int, int]]:
    found = [row for row in rows if (row.range, row.operator) == (around, operator)]
    return [(row.ns, row.idle_ns, row.starved_ns, row.calls) for row in found]


def test_time_belongs_to_the_innermost_range_and_calls_of_cuda_are_none_of_it(tmp_path: Path) -> None:
    rows, rank = measure(tmp_path, build(("layers.3.mlp", 200, 700), ("aten::item, seq = 1", 300, 400)))
    assert sum(row.ns for row in rows) == sum(rank.budget.values()) - 100 * US - 3
    assert find(rows, "layers.*.mlp", "aten::item") == [(100 * US, 100 * US, 100 * US, 1)]
    around = find(rows, "layers.*.mlp")
    assert sum(ns for ns, *_ in around) == (500 - 100 - 100) * US - 1
    assert sum(starved for _, _, starved, _ in around) == (100 + 80 + 100) * US  # not while the addition is launched


def test_what_starves_the_device_is_the_detail_of_the_gap(tmp_path: Path) -> None:
    rows, rank = measure(tmp_path, build(("load batch", 105, 475)))
    starved = {gap.detail: gap.ns for gap in rank.gap_causes if gap.cause == "starved_nothing_visible"}
    assert sum(starved.values()) == sum(row.starved_ns for row in rows)
    assert any(detail.endswith("load batch") for detail in starved)


def test_without_ranges_time_is_known_and_its_place_is_not(tmp_path: Path) -> None:
    builder = build()
    builder.rows["NVTX_EVENTS"].clear()
    rows, _ = measure(tmp_path, builder)
    assert rows
    assert not any(row.range or row.operator or row.calls for row in rows)


def test_a_thread_without_launches_in_the_step_is_not_listed(tmp_path: Path) -> None:
    builder = build()
    builder.api("cudaEventQuery_v3020", 2_300 * US, 2_301 * US, thread=builder.thread + 5)
    rows, _ = measure(tmp_path, builder)
    assert {row.thread for row in rows} == {1}
