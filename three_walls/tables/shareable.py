"""What may be shared of an export: ``tables/scrub.yaml``, ``key-shapes.yaml`` and ``safe-words.yaml``.

Settings and variables have forms of their own. The functions here judge all other texts, such as messages and the names
of kernels and ranges. :func:`cut_private` replaces paths, addresses and keys, :func:`is_safe_text` accepts texts that
consist of the field's own words, and :func:`cut_sentence` keeps only such words of a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator

from three_walls.lib.load_documents import Loc, Pattern, Text, Texts, compiled, load_table, raise_contradictions
from three_walls.lib.resources import TABLES_DIR

_TOKEN = re.compile(r"[^\s'\"<>|;,()\[\]]+")
"""What a path or an address inside of a text consists of: everything between spaces, quotes and brackets."""
_NO_PATH = re.compile(r"[/\\]+|(?:\d{1,6}/)+\d{1,6}|[\w:~]*operator/=?", re.ASCII)
"""Tokens with a slash that are no path: ``0/0``, and the division of C++."""
_ADDRESS = re.compile(
    r"(?<!\d)\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?!\d)"  # IPv4, with a port
    r"|(?<![0-9A-F])[0-9A-F]{2}(?:(?::[0-9A-F]{2}){5,7}|(?:-[0-9A-F]{2}){5,7})(?![0-9A-F])"  # MAC
    r"|[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}"  # a UUID
    r"|(?<![\w:])(?:2[0-9A-F]{3}|F[CDE][0-9A-F]{2})(?:::?[0-9A-F]{1,4}){2,7}(?:::)?(?![\w:])"  # IPv6, not ::1
    r"|(?<![\w:])(?:2[0-9A-F]{3}|F[CDE][0-9A-F]{2})::(?:[0-9A-F]{1,4}(?![\w:]))?",
    re.ASCII | re.IGNORECASE,
)
_LONG_NUMBER = re.compile(r"\d{10,}(?:\.\d+)?|(?<!\d)\d{3,6}(?:[ -]\d{3,6}){2,}(?!\d)", re.ASCII)
"""A number that counts nothing in a message: of cards, telephones, accounts."""
_KEY_START = "(?<![A-Za-z0-9])"
_LONGEST_TEXT = 160
_LONGEST_PIECE = 40  # longer than any word, and than any words written together
_FEWEST_LETTERS = 4  # of a word in a compound: shorter ones could spell anything
_MOST_SINGLE_LETTERS = 2
_NAME = re.compile(r"\w+")
_LETTER = re.compile(r"[^\W\d_]")
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBER = re.compile(r"\d+")
_MOST_DIGITS = 6  # of one number
_MOST_DIGITS_TOGETHER = 12
_SAFE_CHARACTERS = re.compile(r"[\w .,:+*#%()\[\]<>=-]+", re.ASCII)

ColumnKind = Literal[
    "numbers",
    "kernel_ids",
    "call_ids",
    "range_ids",
    "range_texts",
    "gpu_names",
    "sentences",
    "field_names",
    "metric_names",
    "nccl_payloads",
]
"""What a column holds; the header of ``scrub.yaml`` explains each."""
AsciiPattern = Annotated[re.Pattern[str], compiled(re.ASCII)]


def _check_columns(columns: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    kind_of: dict[str, str] = {}
    wrong: list[tuple[Loc, str]] = []
    for kind, names in columns.items():
        for name in names:
            if name in kind_of:
                wrong.append(((kind,), f"column {name} is listed twice"))
            kind_of[name] = kind
    raise_contradictions(wrong)
    return columns


@dataclass(frozen=True, slots=True)
class SafePattern:
    """What may stay."""

    pattern: AsciiPattern
    reason: Text


@dataclass(frozen=True)
class ScrubRules:
    """``scrub.yaml``."""

    tables: Mapping[str, Annotated[Mapping[ColumnKind, Texts], AfterValidator(_check_columns)]]
    """Table -> kind -> columns."""
    pairs: Mapping[str, Mapping[Pattern, AsciiPattern]]
    """Table of names and values -> expression that matches a whole name -> values that may stay with it."""
    ranges: tuple[SafePattern, ...]
    """NVTX texts."""
    parts: tuple[Pattern, ...]
    """Parts that stay of a text that does not stay as a whole."""
    scripts: frozenset[Text]
    """Training scripts whose file name stays."""

    @cached_property
    def column_kinds(self) -> Mapping[str, Mapping[str, str]]:
        """Table -> column -> kind, in the order of the file."""
        return {
            table: {name: kind for kind, names in columns.items() for name in names}
            for table, columns in self.tables.items()
        }

    @cached_property
    def any_part(self) -> re.Pattern[str]:
        """Any of :attr:`parts`."""
        return re.compile("|".join(part.pattern for part in self.parts))


@dataclass(frozen=True, slots=True)
class KeyShape:
    """The form of the keys (secrets) of one issuer."""

    pattern: Pattern
    reason: Text


@dataclass(frozen=True)
class KeyShapes:
    """``key-shapes.yaml``."""

    shapes: tuple[KeyShape, ...]

    @cached_property
    def any_shape(self) -> re.Pattern[str]:
        """Matches any of the shapes at the beginning of a word."""
        return re.compile(f"{_KEY_START}(?:{'|'.join(shape.pattern.pattern for shape in self.shapes)})", re.ASCII)


def _check_word(word: str) -> str:
    if not re.fullmatch(r"[a-z]{2,}", word):
        raise ValueError(f"expected a word in lower case, found {word}")
    return word


@dataclass(frozen=True, slots=True)
class SafeWords:
    """``safe-words.yaml``."""

    words: frozenset[Annotated[Text, AfterValidator(_check_word)]]


@dataclass(frozen=True)
class ScrubWords:
    """``scrub-words.yaml``."""

    forms: tuple[SafePattern, ...]
    """What a part of a name may look like besides words."""
    words: frozenset[Annotated[Text, AfterValidator(_check_word)]]

    @cached_property
    def any_form(self) -> re.Pattern[str]:
        """Matches any of the forms."""
        return re.compile("|".join(f"(?:{form.pattern.pattern})" for form in self.forms), re.ASCII)

    @cached_property
    def words_of_names(self) -> frozenset[str]:
        """These words and the safe ones."""
        return self.words | safe_words()


@cache
def scrub_rules() -> ScrubRules:
    """The rules that ship with the program."""
    return load_table(TABLES_DIR / "scrub.yaml", ScrubRules)


@cache
def key_shapes() -> re.Pattern[str]:
    """Matches anything that has the shape of a key."""
    return load_table(TABLES_DIR / "key-shapes.yaml", KeyShapes).any_shape


@cache
def safe_words() -> frozenset[str]:
    """The words of the field, in lower case."""
    return load_table(TABLES_DIR / "safe-words.yaml", SafeWords).words


@cache
def scrub_words() -> ScrubWords:
    """The words and forms of names of kernels, calls and library ranges, besides the safe words."""
    return load_table(TABLES_DIR / "scrub-words.yaml", ScrubWords)


@lru_cache(maxsize=10_000)  # the ranks of a run have the same kernels and calls
def cut_private(text: str) -> str:
    """``text`` with every path, address and key replaced. The work is linear in its length."""
    without_paths = _TOKEN.sub(_cut_path, key_shapes().sub("<key>", text))
    cut = _ADDRESS.sub("<address>", without_paths)
    return key_shapes().sub("<key>", cut)  # what a cut has left may begin a word now


def _cut_path(found: re.Match[str]) -> str:
    """A token, or what replaces it: paths of Unix and Windows go from their first directory on, and web addresses."""
    token = found[0]
    if "/" not in token and "\\" not in token:
        return token if "@" not in token.strip("@") else "<address>"
    path = token.rstrip(".:")
    if _NO_PATH.fullmatch(path):
        return token
    return f"<path>{token[len(path) :]}"


def holds_key(text: str) -> bool:
    """Whether a part of ``text`` has the shape of a key."""
    return key_shapes().search(text) is not None


def is_safe_text(text: str) -> bool:
    """Whether ``text`` consists of safe words, small numbers and signs."""
    if len(text) > _LONGEST_TEXT or not _SAFE_CHARACTERS.fullmatch(text) or cut_private(text) != text:
        return False
    lengths = [len(digits) for digits in _NUMBER.findall(text)]
    if sum(lengths) > _MOST_DIGITS_TOGETHER or max(lengths, default=0) > _MOST_DIGITS:
        return False
    return all(map(_is_safe_name, _NAME.findall(text)))


def cut_sentence(text: str) -> str:
    """A message of the profiler with paths, addresses, keys, long numbers and words that are not safe replaced."""
    cut = _LONG_NUMBER.sub("<number>", cut_private(text))
    return _NAME.sub(lambda found: found[0] if _is_safe_name(found[0]) else "<word>", cut)


def is_safe_piece(piece: str) -> bool:
    """Whether ``piece`` (letters of one case) is a safe word, a single letter, or safe words written together."""
    piece = piece.lower()
    return len(piece) == 1 or is_compound(piece, safe_words())


@lru_cache(maxsize=1 << 16)
def is_compound(piece: str, words: frozenset[str]) -> bool:
    """Whether ``piece`` is one of ``words``, or several of four letters and more written together."""
    if piece in words:
        return True
    if len(piece) > _LONGEST_PIECE:
        return False
    ends = {0}  # where a word may end
    for end in range(_FEWEST_LETTERS, len(piece) + 1):
        if any(end - start >= _FEWEST_LETTERS and piece[start:end] in words for start in ends):
            ends.add(end)
    return len(piece) in ends


def _is_safe_name(name: str) -> bool:
    if not _LETTER.search(name):
        return True
    pieces = _PIECE.findall(name)
    single_letters = sum(len(piece) == 1 for piece in pieces)  # many of them, with digits between, are a key
    return name.isascii() and single_letters <= _MOST_SINGLE_LETTERS and all(map(is_safe_piece, pieces))
