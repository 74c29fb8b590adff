"""Texts that consist of the trade's own words: ``tables/safe-words.yaml``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.private_texts import cut_private, holds_key
from three_walls.tables.strict_yaml import Problems, load_strict

_LONGEST_TEXT = 160
_FEWEST_LETTERS = 3  # of a word that is written together with others: shorter ones could spell anything
_MOST_SINGLE_LETTERS = 2
_NAME = re.compile(r"\w*[^\W\d_]\w*")
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBER = re.compile(r"\d+")
_MOST_DIGITS = 6  # of one number
_MOST_DIGITS_TOGETHER = 12
_ADDRESS = re.compile(r"(?<!\d)\d{1,3}(\.\d{1,3}){3}(:\d{1,5})?(?!\d)")
_PLAIN = re.compile(r"[\w .,:/+*#%()\[\]<>=-]+", re.ASCII)


def is_plain(text: str) -> bool:
    """Whether ``text`` is made of plain words, small numbers and signs alone."""
    if len(text) > _LONGEST_TEXT or not _PLAIN.fullmatch(text) or holds_key(text) or _ADDRESS.search(text):
        return False
    lengths = [len(digits) for digits in _NUMBER.findall(text)]
    if sum(lengths) > _MOST_DIGITS_TOGETHER or max(lengths, default=0) > _MOST_DIGITS:
        return False
    return all(map(_is_plain_name, _NAME.findall(text)))


def cut_sentence(text: str) -> str:
    """A message of the profiler without paths, addresses, keys and words that are not plain."""
    cut = _ADDRESS.sub("<address>", cut_private(text))
    return _NAME.sub(lambda found: found[0] if _is_plain_name(found[0]) else "<word>", cut)


@cache
def is_plain_piece(piece: str) -> bool:
    """Whether letters of one case are a word, a single letter, or words written together."""
    piece = piece.lower()
    words = safe_words()
    if len(piece) == 1 or piece in words:
        return True
    ends = {0}  # where a word may end
    for end in range(_FEWEST_LETTERS, len(piece) + 1):
        if any(end - start >= _FEWEST_LETTERS and piece[start:end] in words for start in ends):
            ends.add(end)
    return len(piece) in ends


def _is_plain_name(name: str) -> bool:
    slices = _PIECE.findall(name)
    singles = sum(len(piece) == 1 for piece in slices)  # many of them, with digits between, are a key
    return name.isascii() and singles <= _MOST_SINGLE_LETTERS and all(map(is_plain_piece, slices))


@cache
def safe_words() -> frozenset[str]:
    """The words that ship with the program."""
    return load_safe_words(TABLES_DIR / "safe-words.yaml")


def load_safe_words(path: Path) -> frozenset[str]:
    """The words in ``path``; raises RuleBaseError that lists every error."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("words",))
    nodes = problems.items(top.get("words"))
    words = [problems.text(node) for node in nodes]
    for node, word in zip(nodes, words, strict=True):
        if word and not re.fullmatch(r"[a-z]{2,}", word):
            problems.add(node, f"expected a word in small letters, found {word}")
    problems.raise_if_any()
    return frozenset(words)
