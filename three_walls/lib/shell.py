"""Text that is safe to paste into a shell: names of files and variables, words of a command."""

from __future__ import annotations

import os
import re
import shlex

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@ ")


def is_variable(name: str) -> bool:
    """Whether ``name`` can name an environment variable in a shell; anything else could be a command there."""
    return _VARIABLE.fullmatch(name) is not None


def quote_word(word: str) -> str:
    """``word`` as a POSIX shell reads it back, on one line and printable.

    A word that holds control characters, or bytes that are not UTF-8, is written by printf, in octal. A shell drops
    line breaks at the end of what printf writes, so that such a word is quoted as bash and zsh do it.
    """
    if word.isprintable():
        return shlex.quote(word)
    octal = "".join(chr(byte) if byte in _PLAIN_BYTES else f"\\{byte:03o}" for byte in _encode(word))
    if octal.startswith("-"):
        octal = f"\\055{octal[1:]}"  # printf would take it for an option
    return f"$'{octal}'" if word.endswith("\n") else f"\"$(printf '{octal}')\""


def quote_file(name: str) -> str:
    """``name`` as :func:`quote_word` quotes it, so that no command takes it for an option."""
    return quote_word(f"./{name}" if name.startswith("-") else name)


def quote_assignment(name: str, value: str) -> str:
    """``NAME=value`` with the value quoted. Raises ValueError for a name that no variable can have."""
    if not is_variable(name):
        raise ValueError(f"expected the name of a variable (letters, digits and _), found {name!r}")
    return f"{name}={quote_word(value)}"


def _encode(word: str) -> bytes:
    try:
        return os.fsencode(word)
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name yields
        return word.encode("utf-8", "surrogatepass")
