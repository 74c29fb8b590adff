"""Names of kernels, calls and library ranges, word by word: words of the field stay, others become word1, word2, ..."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

from three_walls.tables.shareable import cut_private, is_compound, scrub_words

_IDENTIFIER = re.compile(r"\w+")
_PART = re.compile(r"_+|[^_]+")
_PIECE = re.compile(r"\d+(?:x\d+)+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|.", re.DOTALL)
_NUMBER_OF_SEVERAL = re.compile(r"\d{2,6}(?:[ .-]\d{2,6}){2,}", re.ASCII)
"""Numbers in a row, as of cards and telephones. Names separate theirs by commas, brackets and letters."""
_OTHER_CHARACTERS = re.compile(r"[^\x20-\x7e\w]+")
_LONGEST_PART = 64
_LONGEST_NUMBER = 6
_MOST_SINGLE_LETTERS = 2
_MOST_CHANGES = 4


def filter_name(text: str, replace: Callable[[str], str]) -> str:
    """``text`` with paths, addresses, keys, long numbers and all words that are not the field's replaced.

    ``replace`` gives the placeholder of a word. The work is linear in the length of ``text``.
    """
    cut = _NUMBER_OF_SEVERAL.sub("<number>", cut_private(text))
    return _IDENTIFIER.sub(lambda found: _filter_identifier(found[0], replace), _OTHER_CHARACTERS.sub("?", cut))


def _filter_identifier(identifier: str, replace: Callable[[str], str]) -> str:
    if not identifier.isascii():
        return replace(identifier)
    return "".join(
        part if is_known else replace(part)
        for whole in _PART.findall(identifier)
        for part, is_known in (_judge_part(whole) if len(whole) <= _LONGEST_PART else [(whole, whole[0] == "_")])
    )


@lru_cache(maxsize=1 << 16)
def _judge_part(part: str) -> tuple[tuple[str, bool], ...]:
    """``part`` of a name, which has no underscores or nothing else, in pieces, each with whether it may stay.

    Digits and single letters next to an unknown word go with it: ``hunter2`` is one piece.
    """
    if part[0] == "_" or scrub_words().any_form.fullmatch(part) or _is_word(part.lower()):
        return ((part, True),)
    pieces = _PIECE.findall(part)
    single_letters = sum(piece.isalpha() and len(piece) == 1 for piece in pieces)
    changes = sum(before[0].isdigit() != after[0].isdigit() for before, after in pairwise(pieces))
    most_letters = _MOST_SINGLE_LETTERS if changes < len(pieces) - 1 else 1  # `871c969b8468` has no word at all
    if single_letters > most_letters or changes > _MOST_CHANGES:
        return ((part, False),)
    return tuple(_join_pieces([(piece, _is_known(piece)) for piece in pieces]))


def _is_known(piece: str) -> bool | None:
    """Whether ``piece`` may stay; None for one that goes with its neighbours."""
    if piece[0].isdigit():
        return None if max(map(len, piece.split("x"))) <= _LONGEST_NUMBER else False
    if len(piece) == 1:
        return None
    return _is_word(piece.lower())


def _is_word(word: str) -> bool:
    return is_compound(word, scrub_words().words_of_names)


def _join_pieces(pieces: list[tuple[str, bool | None]]) -> Iterator[tuple[str, bool]]:
    """Joins what goes together: unknown words with the digits and single letters on both sides of them."""
    joined, is_known = "", True
    waiting = ""  # digits and single letters whose neighbour is not known yet
    for piece, judged in pieces:
        if judged is None:
            waiting += piece
        elif judged == is_known or (not joined and is_known):
            joined, is_known, waiting = joined + waiting + piece, judged, ""
        elif is_known:  # an unknown word takes the digits before it
            yield joined, True
            joined, is_known, waiting = waiting + piece, False, ""
        else:
            yield joined + waiting, False
            joined, is_known, waiting = piece, True, ""
    if joined or waiting:
        yield joined + waiting, is_known
