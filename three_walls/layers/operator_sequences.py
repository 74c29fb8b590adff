"""Unfused work by the order of PyTorch's operators, for captures that record no shapes.

Without fusion, the rotary embedding and the router's choice of experts are fixed sequences of operators
(``tables/torch-operators.yaml``: ``sequences``). A fused kernel takes over one sequence, or a named part of it, in the
forward pass, and another one its backward pass. Autograd numbers the operators: the backward node of an operator has
its number, so what it launches is known too.

A sequence that does not occur where it must, or not as often, is ambiguous: then nothing of that work is named.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from three_walls.step.operators import EVALUATES, Operator, Operators
from three_walls.tables.nvtx_ranges import OperatorSequence, torch_operators

_PYTORCH_PREFIXES = ("aten::", "c10d::", "nccl:", "autograd::")
_BACKWARD = "Backward"

Stream = tuple[int, int | None]
"""A thread, and the range that runs a part of the forward pass again there; None for the forward pass itself."""


@dataclass(frozen=True, slots=True)
class FusedPart:
    """What one fused kernel would take over."""

    work: str
    part: str
    """The name of the part of the sequence."""
    number: int
    """Differs between kernels, also between a forward kernel and the kernel of its backward pass."""
    forward: int
    """The number of the forward kernel: its own, or that of the pass that this one goes back through."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """What was found in the ranges of one process."""

    parts: Mapping[int, FusedPart]
    """Range -> the part that it belongs to: operators of the forward pass, nodes of the backward pass."""
    ambiguous: Mapping[str, str]
    """Work -> why it cannot be identified, where some of its operators were found."""


@dataclass(slots=True)
class _Walk:
    """The ranges of a process, by what runs in them."""

    outermost: dict[int, int] = field(default_factory=dict)
    """Range of the forward pass -> the outermost operator around it."""
    streams: dict[Stream, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The outermost operators of the forward pass, in order."""
    numbered: dict[Stream, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The ranges of the forward pass whose operator has a number, in order."""
    nodes: list[tuple[int, int, Stream]] = field(default_factory=list)
    """Numbered ranges of nodes of the backward pass: range, range of the node, thread and replay."""


def is_operator(operator: Operator) -> bool:
    """Whether PyTorch wrote the range: its operator has a namespace, a number or shapes."""
    return operator.sizes is not None or operator.sequence is not None or operator.name.startswith(_PYTORCH_PREFIXES)


def find_sequences(operators: Operators, attention: Collection[int]) -> Sequences:
    """The parts of ``operators`` that fused kernels would take over.

    ``attention``: the innermost range around the launch of each attention kernel of forward passes.
    """
    walk = _walk(operators)
    parts: dict[int, FusedPart] = {}
    ambiguous: dict[str, str] = {}
    attends = {walk.outermost[index] for index in attention if index in walk.outermost}
    for sequence in torch_operators().sequences:
        found: dict[int, FusedPart] = {}
        reasons: list[str] = []
        for stream, order in walk.streams.items():
            names = [operators.found[index].name for index in order]
            matches = list(_match(sequence.operators, names))
            reasons.append(_find_ambiguity(sequence, order, names, matches, attends))
            of_stream = _number_parts(sequence.work, order, matches)
            found |= of_stream | _go_back(operators, walk, stream, of_stream, sequence.sums_gradients)
        if walk.nodes and all(part.number == part.forward for part in found.values()):
            reasons.append("no node of the backward pass has the number of one of its operators")
        if found and any(reasons):
            ambiguous[sequence.work] = next(filter(None, reasons))
        else:
            parts |= found
    return Sequences(parts, ambiguous)


def _walk(operators: Operators) -> _Walk:
    table = torch_operators()
    wrappers = {name.removesuffix(_BACKWARD) for name in table.replays}
    walk = _Walk()
    replay_of: dict[int | None, int | None] = {None: None}
    node_of: dict[int | None, int | None] = {None: None}
    for thread, order in operators.order.items():
        for index in order:
            operator = operators.found[index]
            replay, node = replay_of[operator.parent], node_of[operator.parent]
            name = operator.name.removeprefix(EVALUATES)
            if name in table.replays:
                replay_of[index], node_of[index] = index if replay is None else replay, None
                continue
            if node is None and (name != operator.name or table.backward.search(name)):
                node = index
            replay_of[index], node_of[index] = replay, node
            stream = (thread, replay)
            if node is not None:
                if operator.sequence is not None:
                    walk.nodes.append((index, node, stream))
                continue
            around = walk.outermost.get(operator.parent) if operator.parent is not None else None
            if around is None and is_operator(operator) and name not in wrappers:
                around = index
                walk.streams[stream].append(index)
            if around is not None:
                walk.outermost[index] = around
                if operator.sequence is not None:
                    walk.numbered[stream].append(index)
    return walk


def _match(pattern: re.Pattern[str], names: Sequence[str]) -> Iterator[dict[str, tuple[int, int]]]:
    """Per match of ``pattern`` the places [first, last) of each of its parts among ``names``, and of the ``match``."""
    words = [f"{name.removeprefix('aten::').replace(';', ' ')};" for name in names]
    text = "".join(words)
    place_at, at = {}, 0
    for place, word in enumerate(words):
        place_at[at] = place
        at += len(word)
    place_at[at] = len(words)
    place = 0
    starts = list(place_at)
    while place < len(words):
        match = pattern.match(text, starts[place])
        if match is None:
            place += 1
            continue
        spans = {part: span for part in match.groupdict() if (span := match.span(part))[1] > span[0]}
        yield {part: (place_at[first], place_at[last]) for part, (first, last) in spans.items()}
        place = max(place + 1, place_at[match.end()])


def _find_ambiguity(
    sequence: OperatorSequence,
    order: Sequence[int],
    names: Sequence[str],
    matches: Sequence[Mapping[str, tuple[int, int]]],
    attends: Collection[int],
) -> str:
    """Why ``matches`` among the operators ``order`` are not what they seem to be; empty if they are.

    Every operator ``follows`` has one match after it, or every attention kernel an even number before it: queries and
    keys are turned alike.
    """
    if sequence.follows:
        expected = sum(name == sequence.follows for name in names)
        is_clear = len(matches) == expected
        return "" if is_clear else f"it follows {len(matches)} of {expected} {sequence.follows}"
    if not matches:  # what runs attention again need not turn queries and keys again
        return ""
    ends = [last for match in matches for _, last in match.values()]
    before = 0
    for place in (place for place, index in enumerate(order) if index in attends):
        until = bisect_right(ends, place)
        count = until - before
        if count == 0 or count % 2:
            return f"{count} precede an attention kernel, where queries and keys need two"
        before = until
    if before < len(ends):
        return "no attention kernel follows"
    return ""


def _number_parts(
    work: str, order: Sequence[int], matches: Sequence[Mapping[str, tuple[int, int]]]
) -> dict[int, FusedPart]:
    """The parts of ``matches``, by range."""
    part_of = {}
    for match in matches:
        for part, (first, last) in match.items():
            number = order[first]
            for index in order[first:last]:
                part_of[index] = FusedPart(work, part, number, number)
    return part_of


def _go_back(
    operators: Operators, walk: _Walk, stream: Stream, parts: Mapping[int, FusedPart], sums_gradients: bool
) -> dict[int, FusedPart]:
    """The parts that the backward nodes of the operators in ``parts`` belong to, by range.

    ``sums_gradients``: whether the sums of gradients that a node makes for the next one belong to it.
    """
    if not parts:
        return {}
    made_by: dict[int, FusedPart | None] = {}
    for index in walk.numbered[stream]:
        # Operators that need no gradient have the number of the next one that does: the last one counts.
        number = operators.found[index].sequence
        assert number is not None
        made_by[number] = parts.get(walk.outermost[index])
    part_of: dict[int, FusedPart] = {}
    first_range: dict[int, int] = {}
    thread, replay = stream
    for index, node, (of_thread, of_replay) in walk.nodes:
        # A thread numbers the operators of all its replays in a row. What one runs again, as an up-projection before
        # attention is, may be gone back through in the next.
        goes_back = of_replay is None if replay is None else of_replay is not None and of_thread == thread
        number = operators.found[index].sequence
        forward_part = made_by.get(number) if number is not None and goes_back else None
        if forward_part is None:
            continue
        back = FusedPart(
            forward_part.work, forward_part.part, first_range.setdefault(forward_part.number, node), forward_part.number
        )
        part_of[index] = back
        if sums_gradients:
            part_of[node] = back
    return part_of
