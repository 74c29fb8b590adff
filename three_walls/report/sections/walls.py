"""What holds the step back: upper bounds of the three walls, the critical path, and the wall after a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from three_walls.advice.reconcile import find_without
from three_walls.advice.verdict_rows import REMOVED, Counterfactual
from three_walls.facts.fact_rows import CriticalPathRow
from three_walls.lib.text import UNKNOWN, capitalize, format_count, format_ms, format_share
from three_walls.report.charts import WALL_COLOURS
from three_walls.report.comparison import ComparedRun, Pair
from three_walls.report.formats import SUB_WALL_NAMES, describe_gain, format_wall
from three_walls.report.report import Report
from three_walls.report.section import ROW, Bar, Block, Column, Inline, Items, Note, Section, Table, Terminal, Text
from three_walls.tables.buckets import BUCKET_TITLES, SubWall, Wall

_FACTS = {
    (Wall.MEMORY, None): "memory_recoverable_ns",
    (Wall.COMMUNICATION, None): "communication_recoverable_ns",
    (Wall.COMPUTE_HOST, None): "",
    (Wall.COMPUTE_HOST, SubWall.COMPUTE): "compute_recoverable_ns",
    (Wall.COMPUTE_HOST, SubWall.HOST): "host_recoverable_ns",
}
"""Wall and half, in the order of the table -> the fact that is its upper bound; empty for the sum of the halves."""
_BOTH_HALVES = "The sum of the two halves, which share no time."
_REPLAYS = {
    (Wall.MEMORY, None): "Nothing is computed again, and nothing is copied to the host.",
    (Wall.COMMUNICATION, None): "Communication takes no time.",
    (Wall.COMPUTE_HOST, None): "Both halves at once.",
    (Wall.COMPUTE_HOST, SubWall.COMPUTE): "GEMMs reach the peak that can be reached; no unfused attention.",
    (Wall.COMPUTE_HOST, SubWall.HOST): "The host takes no time: every kernel is launched at once.",
}
"""What a replay leaves out."""


@dataclass(frozen=True, slots=True)
class WallRow:
    wall: Wall
    sub_wall: SubWall | None
    recoverable_ns: int | None
    fraction: float | None
    """Of the step that the walls are judged for."""
    meaning: str
    mark: str
    """``the wall``, ``this half``, ``runner-up`` or nothing."""


def walls(report: Report) -> Section:
    """What removing each of the three walls saves, in Megatron Core's order, and of the two halves of the third.

    By replay, as the verdict and the plan are; upper bounds in the traced step only where it was not replayed.
    """
    result = report.verdict
    is_replayed = bool(result.counterfactuals)
    columns = (
        Column("Wall", ROW, _name),
        Column("Shorter by" if is_replayed else "Up to", "recoverable_ns", format_ms),
        Column(capitalize(judged_step(report)), "fraction", format_share),
        Column("", ROW, _draw, width="shape", in_terminal=False),
        Column("", "mark", lambda mark: Text(mark, "badge" if mark == "runner-up" else "badge strong") if mark else ""),
        Column("What it is", "meaning", role="muted", width="wide", in_terminal=False),
    )
    rows = tuple(_read(report, wall, sub_wall) for wall, sub_wall in _FACTS)
    title = f"Upper bounds in the traced step ({format_ms(result.step_ns)})" if result.step_ns else ""
    if is_replayed:
        title = f"The step without each wall (replayed without the profiler, {format_ms(result.replayed_step_ns)} now)"
    blocks: list[Note | Table] = [Note(reason) for reason in (result.reason, result.plan_remark) if reason]
    blocks.append(Table("walls", columns, rows, title, emphasis=lambda row: row.mark == "the wall"))
    others = [each for each in result.counterfactuals if len(each.without) > 1 or each.without == ("straggler",)]
    if others:
        blocks.append(_tabulate_counterfactuals(report, others))
    blocks += [Note(each.note, role="muted") for each in result.counterfactuals if each.note]
    if result.no_replay_reason:
        blocks.append(Note(f"The step was not replayed: {result.no_replay_reason}.", role="muted"))
    if result.margin_fraction is not None:
        margin = format_share(result.margin_fraction)
        blocks.append(Note(f"The wall leads the runner-up by {margin} {judged_step(report)}.", role="muted"))
    return Section(
        "walls",
        "The three walls",
        tuple(blocks),
        lead="The most that removing each wall could save. The plan states how much of it its edits may save.",
        link="Walls",
    )


def find_counterfactual(report: Report, wall: Wall, sub_wall: SubWall | None) -> Counterfactual | None:
    """The replayed step without a wall; None where nothing was replayed."""
    return find_without(report.verdict, *_list_removed(wall, sub_wall))


def _list_removed(wall: Wall, sub_wall: SubWall | None) -> tuple[str, ...]:
    """What counterfactuals without the wall are without: of the third wall, both halves."""
    if wall is not Wall.COMPUTE_HOST:
        return (wall.value,)
    return tuple(f"{wall.value}.{half.value}" for half in SubWall if sub_wall in (None, half))


def _tabulate_counterfactuals(report: Report, rows: Sequence[Counterfactual]) -> Table:
    """The replayed step without two walls at once, and without the delay of a slow rank."""
    now_ns = report.verdict.replayed_step_ns or 0
    columns = (
        Column("Without", lambda row: " and ".join(REMOVED[name] for name in row.without)),
        Column("Step", "step_ns", format_ms),
        Column("Shorter by", "saved_ns", format_ms),
        Column("Of the step", lambda row: row.saved_ns / now_ns if now_ns else None, format_share),
    )
    return Table("without_walls", columns, rows, "The step without more", is_compact=True)


def judged_step(report: Report) -> str:
    """The step that shares of walls are of: ``of the step``, or ``of the step without the delay of rank 2``."""
    culprit = report.verdict.culprit
    if culprit is None or (
        report.verdict.counterfactuals and _find_judged_ns(report) != culprit.step_without_it_ns
    ):  # with a culprit: a replay does not show its delay
        return "of the step"
    return f"of the step without the delay of {culprit.named}"


def _find_judged_ns(report: Report) -> int | None:
    """The length of that step: replayed as the walls are, else traced."""
    result = report.verdict
    for each in result.counterfactuals:
        if each.without != ("straggler",):
            return each.step_ns + each.saved_ns
    return result.step_ns and result.step_ns - (result.culprit.cost_ns if result.culprit else 0)


def share_of_judged_step(report: Report, value_ns: int | None) -> float | None:
    """``value_ns`` over that step; None when either is not known."""
    judged_ns = _find_judged_ns(report)
    return value_ns / judged_ns if value_ns is not None and judged_ns else None


def recoverable_of(report: Report, wall: Wall, sub_wall: SubWall | None) -> int | None:
    """What removing a wall saves, in ns: by replay, else its upper bound; of the third wall of both halves."""
    if report.verdict.counterfactuals:
        names = _list_removed(wall, sub_wall)
        saved = {frozenset(each.without): each.saved_ns for each in report.verdict.counterfactuals}
        # Of two halves of which one saves nothing, both together were not replayed.
        alone = [max(0, saved.get(frozenset({name}), 0)) for name in names]
        return saved.get(frozenset(names), max(alone))
    known = report.verdict.recoverable_ns
    if wall is Wall.COMPUTE_HOST and sub_wall is None:
        compute_ns, host_ns = (known.get(f"{wall.value}.{half.value}") for half in SubWall)
        return None if compute_ns is None or host_ns is None else compute_ns + host_ns
    return known.get(wall.value if sub_wall is None else f"{wall.value}.{sub_wall.value}")


def _read(report: Report, wall: Wall, sub_wall: SubWall | None) -> WallRow:
    result = report.verdict
    fact = _FACTS[wall, sub_wall]
    definition = report.facts.get(fact).definition if fact else None
    mark = ""
    if result.wall is wall and sub_wall in (None, result.sub_wall):
        mark = "this half" if sub_wall else "the wall"
    elif result.runner_up_wall is wall and sub_wall in (None, result.runner_up_sub_wall):
        mark = "runner-up"
    recoverable_ns = recoverable_of(report, wall, sub_wall)
    meaning = _BOTH_HALVES if definition is None else definition.meaning
    if report.verdict.counterfactuals:
        meaning = _REPLAYS[wall, sub_wall]
    return WallRow(wall, sub_wall, recoverable_ns, share_of_judged_step(report, recoverable_ns), meaning, mark)


def _name(row: WallRow) -> str:
    return format_wall(row.wall) if row.sub_wall is None else f"- {SUB_WALL_NAMES[row.sub_wall]}"


def _draw(row: WallRow) -> Bar:
    return Bar(() if row.fraction is None else ((row.fraction, WALL_COLOURS[row.wall]),))


def wall_now(before: ComparedRun, pair: Pair) -> Section:
    """The wall of AFTER, and the first entry of its plan."""
    after = pair.after
    items: tuple[Inline | tuple[Inline, ...], ...] = (
        "AFTER was not traced: capture it to learn its wall, and analyze it for the next edit.",
    )
    if after.has_trace:
        is_same = before.has_trace and (after.wall, after.sub_wall) == (before.wall, before.sub_wall)
        entry = "none: the plan of AFTER is empty."
        if after.next_gain is not None:
            entry = f"{after.next_entry} ({after.next_rule}): {describe_gain(after.next_gain)}."
        items = (
            (Text(f"The wall{', as before' if is_same else ''}:", "strong"), f"{name_wall(after)}. {after.verdict}"),
            (Text("Next entry:", "strong"), entry),
        )
    return Section("next", "What is the wall now", (Items(items),), link="Next", terminal=Terminal.ALWAYS)


def name_wall(run: ComparedRun) -> str:
    """The wall of a compared run."""
    return format_wall(run.wall, run.sub_wall) if run.has_trace else UNKNOWN


UNKNOWN_MODULE = "unknown"

_CATEGORIES = {**BUCKET_TITLES, "host": "host (CUDA calls and between)", "gap": "launch latency and gaps"}


def critical_path(report: Report) -> Section | None:
    """Time on the critical path by category and by module, with the slack of operations that are not on it."""
    path = report.critical_path
    if path is None:
        return None
    by_category = Column("Category", "name", lambda name: _CATEGORIES.get(name, name))
    blocks: list[Block] = [_tabulate_path("critical_path", "By what runs", by_category, path.by_category)]
    if any(row.name != UNKNOWN_MODULE for row in path.by_module):
        by_module = Column("Module", "name")
        blocks.append(_tabulate_path("critical_path_modules", "By module of the model", by_module, path.by_module))
    return Section(
        "critical-path",
        "Critical path",
        tuple(blocks),
        lead="What the length of the step hangs on: the longest chain of dependencies in its replay "
        f"({format_ms(path.step_ns)} on rank {path.rank}), without what the profiler is taken to have added. Making "
        "anything else faster does not shorten the step. Slack: how much later the operations that are not on the path "
        "may end before the step grows, by their median.",
        link="Path",
    )


def _tabulate_path(name: str, title: str, first: Column, rows: tuple[CriticalPathRow, ...]) -> Table:
    columns = (
        first,
        Column("On the path", "ns", format_ms, sums=True),
        Column("Share", "fraction", format_share, sums=True),
        Column("Operations", "operations_on_path", format_count, sums=True),
        Column("Of", "operations", format_count, sums=True),
        Column("Slack of the rest", "median_slack_ns", lambda ns: "" if ns is None else format_ms(ns)),
    )
    return Table(name, columns, rows, title=title, is_compact=True)
