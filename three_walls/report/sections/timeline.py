"""The timeline of the representative step, its worst gaps, and its longest exposed communication."""

from __future__ import annotations

from collections.abc import Sequence

from three_walls.export.step_detail_rows import StepTimeline, TimelineRank, TimelineStretch
from three_walls.lib.measurement import NS_PER_S
from three_walls.lib.text import format_ms, shorten, show_control_characters
from three_walls.report.charts import BUCKET_COLOURS
from three_walls.report.report import Report
from three_walls.report.section import ROW, Column, Legend, PageOnly, Section, Swatch, Table, Text, TimelineBlock
from three_walls.report.sections.gaps import CAUSES, label_cause
from three_walls.tables.buckets import BUCKET_TITLES

_NAME_LENGTH = 40
_PALE_COLOUR = "#fbc8a8"
"""Stands for any colour of communication where it is drawn pale."""
LANE_NAMES = {"entries": "", "modules": "module", "budget": "bucket", "gaps": "no compute", "calls": "CUDA"}


def timeline(report: Report) -> Section | None:
    """The step to zoom and pan, with the stretches to look at first."""
    drawn = report.timeline
    if drawn is None:
        return None
    of_entries = [stretch for entry in drawn.entries for stretch in entry.longest]
    linked = (*drawn.worst_gaps, *drawn.exposed_intervals, *drawn.longest, *of_entries)
    block = TimelineBlock(
        timeline=drawn,
        colours={**BUCKET_COLOURS, **{cause: look.colour for cause, look in CAUSES.items()}},
        titles={**BUCKET_TITLES, **{cause: look.label for cause, look in CAUSES.items()}},
        lane_names=LANE_NAMES,
        label=f"Timeline of step {drawn.step} of rank {drawn.rank}",
        targets=tuple(dict.fromkeys(map(link_of, linked))),
    )
    tables = (
        _tabulate("worst_gaps", "Longest idle gaps", "Nothing ran on the device.", drawn.worst_gaps, "Cause"),
        _tabulate(
            "exposed_intervals",
            "Longest exposed communication",
            "Communication ran and no compute kernel did.",
            drawn.exposed_intervals,
            "Communication",
        ),
    )
    return Section(
        "timeline",
        "Timeline",
        (PageOnly((block, _explain_colours(drawn))), *(table for table in tables if table.rows)),
        lead=_lead(drawn),
        link="Timeline",
    )


def link_of(stretch: TimelineStretch) -> str:
    """The anchor in the page that shows ``stretch`` in the timeline."""
    return f"t={stretch.start_ns}-{stretch.start_ns + stretch.ns}&rank={stretch.rank}"


def format_clock(clock_ns: int) -> str:
    """A time as Nsight Systems shows and takes it: ``3.727063386s``."""
    return f"{clock_ns // NS_PER_S}.{clock_ns % NS_PER_S:09d}s"


def _lead(drawn: StepTimeline) -> str:
    words = [f"Step {drawn.step} of rank {drawn.rank}, as captured."]
    late = [str(rank.rank) for rank in drawn.ranks if rank.role == "late"]
    if late:
        words.append(f"Below it: rank {', '.join(late)}, which makes others wait.")
    for counter in drawn.ranks[0].counters[:1]:
        part = format_ms(drawn.ranks[0].length_ns / len(counter.percent))
        words.append(f"Lanes of the hardware show fractions of the peak, averaged over {part}.")
    if len(drawn.ranks) > 1 and not drawn.is_aligned:
        words.append("The clocks of the ranks cannot be compared, so every rank begins at 0.")
    if any(lane.count for rank in drawn.ranks for lane in rank.lanes if len(rank.lanes) > 1):
        words.append("Short neighbours are drawn as one; three-walls export has every operation.")
    if any(_count_shown(rank) < rank.items for rank in drawn.ranks if len(rank.lanes) > 1):
        words.append("Of NVTX the longest ranges are shown; three-walls export has every one.")
    return " ".join(words)


def _count_shown(rank: TimelineRank) -> int:
    lanes = [lane for lane in rank.lanes if lane.kind in ("ranges", "calls", "operations")]
    return sum(sum(lane.count) or len(lane.start_ns) for lane in lanes)


def _explain_colours(drawn: StepTimeline) -> Legend:
    shown = [lane for rank in drawn.ranks[:1] for lane in rank.lanes if lane.kind in ("budget", "operations", "gaps")]
    used = {drawn.texts[place] for lane in shown for place in lane.category}
    buckets = [(Swatch(BUCKET_COLOURS[name]), "", title) for name, title in BUCKET_TITLES.items() if name in used]
    causes = [(Swatch(look.colour), "", f"no compute: {look.label}") for cause, look in CAUSES.items() if cause in used]
    waits = any(lane.wait_ns for rank in drawn.ranks for lane in rank.lanes)
    pale = [(Swatch(_PALE_COLOUR), "", "pale: waiting until the last rank arrives")] if waits else []
    return Legend((*buckets, *pale, *causes))


def _tabulate(name: str, title: str, lead: str, rows: Sequence[TimelineStretch], kind: str) -> Table:
    columns = (
        Column("From the step's start", ROW, lambda row: Text(format_ms(row.start_ns), link=link_of(row))),
        Column("Length", "ns", format_ms),
        Column(kind, "cause", _name_cause),
        Column("Detail", "detail", _name, role="muted", in_terminal=False),
        Column("Then", "next_name", _name, role="code"),
        Column("In Nsight Systems", "clock_ns", format_clock, role="code", in_terminal=False),
    )
    return Table(name, columns, rows, title, lead, terminal_rows=5)


def name_cause(cause: str) -> str:
    """What a reader calls a bucket or the cause of a gap."""
    return BUCKET_TITLES.get(cause) or label_cause(cause)


def _name_cause(cause: str) -> tuple[Swatch, str]:
    idle = BUCKET_COLOURS["idle_other"]
    return Swatch(BUCKET_COLOURS.get(cause) or (CAUSES[cause].colour if cause in CAUSES else idle)), name_cause(cause)


def _name(name: str) -> str:
    return show_control_characters(shorten(name, _NAME_LENGTH))
