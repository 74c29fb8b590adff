"""What a text looks like: a home directory, a token, a common word."""

from __future__ import annotations

import re
from itertools import pairwise

FEW_BYTES = 6
"""Shorter values occur by chance anywhere; they are not looked for."""

_HOME = re.compile(r"(/(?:home|Users|users)/([^/\s:;,'\"]+))")
_WORD = re.compile(r"[A-Za-z]{1,12}|[\d.,:-]{1,11}|[A-Za-z]+=?\d{1,3}")


def homes_in(text: str) -> list[tuple[str, str]]:
    """Home directories that ``text`` speaks of, each with its owner's name."""
    return [(home, owner) for home, owner in _HOME.findall(text)]


def looks_random(word: str) -> bool:
    """Whether ``word`` looks like a key or a digest: a long run in which letters and digits alternate.

    Names of classes end in a digit (``TransposeBackward0``) or hold one (``LayerNorm2dBackward0``); keys hold many.
    """
    return any(len(run) >= 16 and _changes(run) >= 4 for run in re.split(r"[^A-Za-z0-9]", word))


def _changes(run: str) -> int:
    """How often letters and digits take turns in ``run``."""
    return sum(before.isdigit() != after.isdigit() for before, after in pairwise(run))


def is_common_word(text: str) -> bool:
    """Whether ``text`` is a word or a short number that other texts hold by chance."""
    return _WORD.fullmatch(text) is not None
