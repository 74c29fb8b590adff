"""The printed form of a configuration object -> its fields, as text: ``overlap_grad_reduce=True, bucket_size=None``."""

from __future__ import annotations

import re

_FIELD = re.compile(r"\s*([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPENS, _CLOSES = "([{<", ")]}>"


def read_fields(text: str) -> tuple[tuple[str, str], ...]:
    """Fields of what stands between the object's parentheses, in their order; none where it was torn.

    What is no ``name=value`` is left out.
    """
    matches = (_FIELD.fullmatch(part) for part in _split(text))
    return tuple((match[1], match[2].strip()) for match in matches if match)


def _split(text: str) -> list[str]:
    """``text`` at its commas, not at those in quotes or brackets; nothing where those do not close."""
    parts, start, depth, quote = [], 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _OPENS:
            depth += 1
        elif letter in _CLOSES:
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    return [] if depth or quote else [*parts, text[start:]]
