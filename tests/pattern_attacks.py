"""Texts that make a regular expression backtrack: parts of the expression itself, repeated.

Python's engine tries every way to divide a text among the quantifiers of an expression, from every place where it may
begin. A text that repeats what the expression looks for, and fails at its end, makes it try them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from re import _constants as sre
from re import _parser as parser
from typing import Any

_CHARACTERS = "a0_ A.-:/\t,=|"
"""Tried as members of a class of characters, in this order."""
_ENDS = ("", "\x01", "!a\n")
"""Ends at which most expressions fail."""
_MOST_PUMPS = 120
"""Of one expression; those of long alternations repeat each other."""

Nodes = Sequence[tuple[Any, Any]]


def attack_texts(pattern: re.Pattern[str] | re.Pattern[bytes], length: int) -> Iterator[str]:
    """Texts of about ``length`` characters that may make ``pattern`` work hard, in a fixed order."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    nodes = list(parser.parse(text, pattern.flags))
    pumps = dict.fromkeys((before, pump) for before, pump in _pumps(nodes, "") if pump)
    for before, pump in islice(pumps, _MOST_PUMPS):
        for end in _ENDS:
            yield before + pump * max(2, length // len(pump)) + end


def _pumps(nodes: Nodes, before: str) -> Iterator[tuple[str, str]]:
    """(text before, text to repeat): each stretch of the sequence, and what is inside of each of its nodes."""
    yield "", _sample(nodes)
    prefix = before
    for index, node in enumerate(nodes):
        for inner in _inner_sequences(node):
            yield from _pumps(inner, prefix)
        if node[0] in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT, sre.IN, sre.ANY, sre.NOT_LITERAL):
            for pump in _samples_of_repeat(node):
                yield prefix, pump
                yield "", pump
        prefix += _sample([node])
        yield "", prefix[len(before) :]
        yield "", _sample(nodes[index:])


def _inner_sequences(node: tuple[Any, Any]) -> list[Nodes]:
    operator, argument = node
    match operator:
        case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
            return [list(argument[2])]
        case sre.SUBPATTERN:
            return [list(argument[-1])]
        case sre.ATOMIC_GROUP:
            return [list(argument)]
        case sre.BRANCH:
            return [list(branch) for branch in argument[1]]
        case sre.ASSERT | sre.ASSERT_NOT:
            return [list(argument[1])]
    return []


def _samples_of_repeat(node: tuple[Any, Any]) -> Iterator[str]:
    """Single characters that the repeated class accepts, of several kinds."""
    operator, argument = node
    if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        inner = list(argument[2])
        if len(inner) == 1 and inner[0][0] in (sre.IN, sre.ANY, sre.NOT_LITERAL):
            yield from _samples_of_repeat(inner[0])
        else:
            yield _sample(inner)
        return
    if operator is sre.ANY:
        yield "a"
        yield " "
    elif operator is sre.NOT_LITERAL:
        yield from (character for character in "a " if ord(character) != argument)
    else:
        found = [character for character in _CHARACTERS if _accepts(argument, character)]
        yield from found[:4] or [_member_of(argument)]


def _sample(nodes: Nodes) -> str:
    """One text that the sequence matches, as far as that is easy to say."""
    return "".join(map(_sample_of, nodes))


def _sample_of(node: tuple[Any, Any]) -> str:
    operator, argument = node
    match operator:
        case sre.LITERAL:
            return chr(argument)
        case sre.NOT_LITERAL:
            return "b" if argument == ord("a") else "a"
        case sre.ANY:
            return "a"
        case sre.IN:
            return _member_of(argument)
        case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
            return _sample(list(argument[2])) * max(1, min(argument[0], 40))
        case sre.SUBPATTERN:
            return _sample(list(argument[-1]))
        case sre.ATOMIC_GROUP:
            return _sample(list(argument))
        case sre.BRANCH:
            return _sample(list(argument[1][0]))
    return ""


def _member_of(items: Nodes) -> str:
    for character in _CHARACTERS:
        if _accepts(items, character):
            return character
    return next((chr(code) for code in range(33, 0x3000) if _accepts(items, chr(code))), "a")


def _accepts(items: Nodes, character: str) -> bool:
    is_negated = bool(items) and items[0][0] is sre.NEGATE
    code, found = ord(character), False
    for operator, argument in items:
        match operator:
            case sre.LITERAL:
                found |= code == argument
            case sre.RANGE:
                found |= argument[0] <= code <= argument[1]
            case sre.CATEGORY:
                found |= _in_category(argument, character)
    return found != is_negated


def _in_category(category: Any, character: str) -> bool:
    positive = {
        sre.CATEGORY_DIGIT: character.isdigit(),
        sre.CATEGORY_SPACE: character.isspace(),
        sre.CATEGORY_WORD: character.isalnum() or character == "_",
    }
    if category in positive:
        return positive[category]
    negative = {
        sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
        sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
        sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
    }
    return not positive[negative[category]]
