"""The kernel table and the table of host work."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample_kernels import EXPERT_GEMM, HOST_WORK, REST
from three_walls.model.report import KernelPlace, Report
from three_walls.report.section import Note, Section, Table, Text, plain_text
from three_walls.report.sections.host_work import RECORD_RANGES, host_work
from three_walls.report.sections.kernels import kernels

HOSTILE = "</script>\x1b[31m\u202e"


def cells(section: Section | None) -> list[dict[str, str]]:
    """The rows of the section's table: head of the column to text."""
    assert section is not None
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    return [{column.head: plain_text(column.cell(row)) for column in table.columns} for row in table.rows]


def test_a_kernel_shows_where_its_time_comes_from(report: Report) -> None:
    row, rest = cells(kernels(report))
    assert row["Kernel"] == EXPERT_GEMM.name
    assert row["Bucket"] == "grouped GEMM"
    assert (row["Time"], row["Of step"], row["Calls"]) == ("138 ms", "21.6%", "288")
    assert (row["Mean"], row["Fastest"], row["95% below"]) == ("479 us", "402 us", "640 us")
    assert row["Grid x block"] == "(132, 1, 1) x (384, 1, 1) + 2 variants"
    assert row["Most from"] == "experts backward: GroupedLinearBackward + 4"
    assert (row["Launch"], row["Of peak"]) == ("5.00 us", "61.0%")
    assert (rest["Kernel"], rest["Grid x block"], rest["Most from"]) == ("14 more", "", "unknown")
    assert (rest["Launch"], rest["Of peak"]) == ("unknown", "")


def test_the_other_places_of_a_kernel_are_in_its_title(report: Report) -> None:
    section = kernels(report)
    assert section is not None
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    place = next(column for column in table.columns if column.head == "Most from").cell(report.kernels[0])
    assert isinstance(place, Text)
    assert place.title.splitlines() == [
        "experts backward: GroupedLinearBackward: 92.0 ms",
        "experts forward: GroupedLinear: 40.0 ms",
        "experts recompute: GroupedLinear: 4.00 ms",
        "2 other places: 2.00 ms",
    ]


def test_a_hostile_name_of_a_kernel_stays_text(report: Report) -> None:
    place = KernelPlace("experts", None, HOSTILE, 1, 1)
    hostile = replace(EXPERT_GEMM, name=HOSTILE, full_name=HOSTILE, places=(place,))
    (row,) = cells(kernels(replace(report, kernels=(hostile,))))
    assert "\x1b" not in row["Kernel"] + row["Most from"]


def test_host_work_names_the_code_and_the_rest_is_counted(report: Report) -> None:
    first, second, rest = cells(host_work(report))
    assert (first["Next launch"], first["NVTX range"]) == ("experts forward", "layers.*.mlp.experts > aten::mm")
    assert (first["Starves the GPU"], first["Of the step"], first["Ranges"]) == ("12.0 ms", "1.9%", "96")
    assert (second["Next launch"], second["NVTX range"], second["Ranges"]) == ("outside", "outside of ranges", "")
    assert rest["Next launch"] == "40 other places"


def test_without_ranges_the_section_states_what_to_record(report: Report) -> None:
    bare = tuple(replace(row, range="", operator="") for row in HOST_WORK)
    section = host_work(replace(report, host_work=bare))
    assert section is not None
    assert Note(RECORD_RANGES, role="warning") in section.blocks
    named = host_work(report)
    assert named is not None
    assert not [block for block in named.blocks if isinstance(block, Note)]


def test_a_report_without_a_step_has_neither_section(report: Report) -> None:
    assert kernels(replace(report, kernels=())) is None
    assert host_work(replace(report, host_work=())) is None
    assert cells(kernels(replace(report, kernels=(REST,))))
