"""What a text looks like: a path, a token, a plain word."""

from __future__ import annotations

import re
from itertools import pairwise

FEW_BYTES = 6
"""Shorter values occur by chance anywhere; they are not looked for."""

PATH = re.compile(r"(?:[A-Za-z][\w+.-]*://|[A-Za-z]:\\|~?/)[^\s'\"<>|;,()\[\]]*[^\s'\"<>|;,()\[\].:]")
"""A path or an address inside of a text."""

_HOME = re.compile(r"(/(?:home|Users|users)/([^/\s:;,'\"]+))")
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")
_PLAIN_VALUE = re.compile(r"[\w.,:;=+^!*% \[\]()-]{0,160}", re.ASCII)
_WORD = re.compile(r"[A-Za-z]{1,12}|[\d.,:-]{1,11}|[A-Za-z]+=?\d{1,3}")


def cut_paths(text: str) -> str:
    """``text`` with every path and address replaced."""
    return PATH.sub("<path>", text)


def homes_in(text: str) -> list[tuple[str, str]]:
    """Home directories that ``text`` speaks of, each with its owner's name."""
    return [(home, owner) for home, owner in _HOME.findall(text)]


def is_plain_value(text: str) -> bool:
    """Whether ``text`` is a setting that tells nothing of a machine: no path, no address, no random token."""
    if not _PLAIN_VALUE.fullmatch(text) or _ADDRESS.search(text):
        return False
    return not any(looks_random(word) for word in re.split(r"[ ,;:=]", text))


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
