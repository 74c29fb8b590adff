"""The Chrome trace event format, which Perfetto and chrome://tracing open: JSON with a line per event.

Format: "Trace Event Format" of the Chromium project. Times are microseconds with three decimals, so exact to the ns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quote

from three_walls.export.tracks import RankTracks, Slice, StepTracks
from three_walls.lib.version import VERSION


def render_chrome_trace(step: StepTracks) -> Iterator[str]:
    """The document in pieces. A rank is a process, a track one of its threads, an arrow a flow."""
    about = {
        "producer": f"three-walls {VERSION}",
        "step": str(step.step),
        "step_chosen": step.why,
        **{f"note_{place}": note for place, note in enumerate(step.notes, 1)},
    }
    yield f'{{"displayTimeUnit":"ns","otherData":{_to_json(about)},"traceEvents":[\n'
    flow = 0
    separator = ""
    for process, rank in enumerate(step.ranks, 1):
        for lines in _render_rank(process, rank, flow):
            if lines:
                yield separator + ",\n".join(lines)
                separator = ",\n"
        flow += len(rank.arrows)
    yield "\n]}\n"


def _render_rank(process: int, rank: RankTracks, first_flow: int) -> Iterator[list[str]]:
    """The lines of the names, then those of each track, then those of the arrows."""
    names = [
        _name("process_name", process, 0, {"name": f"rank {rank.rank}"}),
        _name("process_sort_index", process, 0, {"sort_index": process}),
    ]
    for thread, track in enumerate(rank.tracks, 1):
        names.append(_name("thread_name", process, thread, {"name": track.name}))
        names.append(_name("thread_sort_index", process, thread, {"sort_index": thread}))
    yield names
    for thread, track in enumerate(rank.tracks, 1):
        place = f'"pid":{process},"tid":{thread}'
        yield [_render_slice(found, place) for found in track.slices]
    arrows = []
    for flow, arrow in enumerate(rank.arrows, first_flow + 1):
        common = f'"name":"launch","cat":"launch","id":{flow},"pid":{process}'
        arrows.append(f'{{"ph":"s",{common},"tid":{arrow.from_track + 1},"ts":{_to_us(arrow.from_ns)}}}')
        arrows.append(f'{{"ph":"f","bp":"e",{common},"tid":{arrow.to_track + 1},"ts":{_to_us(arrow.to_ns)}}}')
    yield arrows


def _render_slice(found: Slice, place: str) -> str:
    start_ns, end_ns, name, category, details = found
    args = ",".join([f'"{key}":{_to_json(value)}' for key, value in details.items() if value is not None])
    return (
        f'{{"ph":"X",{place},"ts":{_to_us(start_ns)},"dur":{_to_us(end_ns - start_ns)},'
        f'"name":{quote(name)},"cat":{quote(category)},"args":{{{args}}}}}'
    )


def _name(kind: str, process: int, thread: int, value: object) -> str:
    return f'{{"ph":"M","pid":{process},"tid":{thread},"name":"{kind}","args":{_to_json(value)}}}'


def _to_us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _to_json(value: object) -> str:
    """ASCII: every other character is escaped. A step has millions of values, nearly all of them texts and integers."""
    if type(value) is str:
        return quote(value)
    if type(value) is int:
        return str(value)
    return _ENCODER.encode(value)
