"""Which texts of an export stay as they are, and what replaces the others.

Names of kernels, calls and library ranges are filtered word by word: words of the field stay, others become word1,
word2, ... The launched command line is reduced to the settings that analysis reads, each with a value of its form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, takewhile

from three_walls.capture.scrub.secrets import Secrets
from three_walls.lib.hydra import Override, write_value
from three_walls.megatron.settings.launchers import find_program
from three_walls.megatron.settings.option_words import VARIABLE_PREFIX, find_dialect, is_bridge_override, is_flag
from three_walls.megatron.settings.setting_sources import shown_value, shown_words
from three_walls.megatron.settings.written_values import read_overrides
from three_walls.tables.config_keys import ConfigKey, config_keys, keys_by_flag, keys_by_path
from three_walls.tables.config_values import takes_several_words
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.shareable import (
    ScrubRules,
    cut_private,
    cut_sentence,
    holds_key,
    is_compound,
    is_safe_text,
    scrub_words,
)
from three_walls.trace.hardware_samples import RATE_UNITS
from three_walls.trace.identity import UNNAMED_GPU
from three_walls.trace.nccl_payload import FIELD_NAMES

# emit_nvtx appends `, seq = 12, op_id = 3, sizes = [[1, 2], []], input_op_ids = [(0,-1)]` to an operator's name.
_OPERATOR_TAIL = re.compile(r"(, (stashed )?(seq|op_id|sizes|input_op_ids) = [-\d\[\](), ]*)+", re.ASCII)
_TAIL_START = re.compile(r", (stashed )?(seq|op_id|sizes|input_op_ids) = ")
_UNREAD_NUMBERS = re.compile(r"(, op_id = )\d+|, input_op_ids = \[[^\]]*\]", re.ASCII)
"""Numbers of single calls, which nobody reads: without them the texts of a capture are few."""
_TOO_LONG_NUMBER = re.compile(r"\d{15}", re.ASCII)
_ORDINARY_NAME = re.compile(r"[a-z]+", re.ASCII)
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


@dataclass(slots=True)
class Placeholders:
    """What replaces texts, numbered by kind: ``range-1``, ``word2``. Exports that are scrubbed together share it."""

    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    """Stem -> replaced text -> its number."""

    def get(self, stem: str, text: str) -> str:
        """The placeholder of ``text``, the same whenever it occurs."""
        numbers = self.numbers.setdefault(stem, {})
        return f"{stem}{numbers.setdefault(text, len(numbers) + 1)}"


@dataclass(slots=True)
class TextFilter:
    """Filters the texts of one export. The same text is always replaced by the same text."""

    rules: ScrubRules
    secrets: Secrets
    placeholders: Placeholders = field(default_factory=Placeholders)
    replaced: dict[str, set[str]] = field(default_factory=dict)
    """What replaced texts of this export, by kind: ``range`` for range-1, range-2, ..."""
    results: set[str] = field(default_factory=set)
    """All texts of the result, without the numbers behind an operator's name."""
    _filtered: dict[tuple[str, str], str] = field(default_factory=dict)

    def filter(self, kind: str, text: str) -> str:
        """``text``, or what replaces it. ``kind`` is one of ``tables.shareable.ColumnKind``."""
        head, tail = _split_operator(text) if kind in ("range_ids", "range_texts") else (text, "")
        filtered = self._filtered.get((kind, head))
        if filtered is None:
            filtered = self._filtered[kind, head] = self._filter_head(kind, head)
            self.results.add(filtered)
        return filtered + _UNREAD_NUMBERS.sub(lambda found: f"{found[1]}0" if found[1] else "", tail)

    def _filter_head(self, kind: str, text: str) -> str:
        match kind:
            case "kernel_ids":
                return self._filter_name(text, "kernel")
            case "call_ids":
                return self._filter_name(text, "call")
            case "metric_names":
                return self._filter_name(text, "metric")
            case "range_ids" | "range_texts":
                return self._filter_range(text)
            case "gpu_names":
                return text if is_safe_text(text) and not self.secrets.occur_in(text) else UNNAMED_GPU
            case "sentences":
                return self._keep_or_number(cut_sentence(text), "message", not _names_secret(text))
            case _:
                return self._keep_or_number(text, "field", text in FIELD_NAMES or text in RATE_UNITS)

    def _filter_name(self, text: str, stem: str) -> str:
        """The words of the field in ``text``, the others replaced; a number where that still holds a secret."""
        name = filter_name(text, lambda word: self._replace("word", word))
        # An ordinary word is no sign of the user adam or the host max: it stays because libraries use it.
        if not self.secrets.occur_in(name, lambda identity: _ORDINARY_NAME.fullmatch(identity) is None):
            return name
        return self._replace(f"{stem}-", text)

    def _filter_range(self, text: str) -> str:
        """``text``, or a number followed by the parts of it that analysis looks for; a library's, word by word."""
        if is_safe_text(text) and not self.secrets.occur_in(text):
            return text
        if not holds_key(text) and any(row.pattern.fullmatch(text) for row in self.rules.ranges):
            return self._filter_name(text, "range")
        parts = [part[0] for part in self.rules.any_part.finditer(text)]
        return " ".join([self._replace("range-", text), *parts])

    def _keep_or_number(self, text: str, stem: str, is_safe: bool) -> str:
        if is_safe and not self.secrets.occur_in(text):
            return text
        return self._replace(f"{stem}-", text)

    def _replace(self, stem: str, text: str) -> str:
        placeholder = self.placeholders.get(stem, text)
        self.replaced.setdefault(stem.rstrip("-"), set()).add(placeholder)
        return placeholder


def _names_secret(sentence: str) -> bool:
    """Whether it contains an option or a variable that looks secret, and so perhaps its value: ``--token abc``."""
    names = [word.partition("=")[0] for word in sentence.split() if word.startswith("-") or "=" in word]
    return any(map(allowed_variables().looks_secret, names))


def _split_operator(text: str) -> tuple[str, str]:
    """The name of an operator's range and the numbers behind it; a text without such numbers is all name."""
    start = _TAIL_START.search(text)
    if start is None or not _OPERATOR_TAIL.fullmatch(text, start.start()):
        return text, ""
    if _TOO_LONG_NUMBER.search(text, start.start()):
        return text, ""
    return text[: start.start()], text[start.start() :]


def filter_name(text: str, replace: Callable[[str], str]) -> str:
    """``text`` with paths, addresses, keys, long numbers and all words that are not the field's replaced.

    ``replace`` gives the placeholder of a word. The work is linear in the length of ``text``.
    """
    cut = _NUMBER_OF_SEVERAL.sub("<number>", cut_private(text))
    return _IDENTIFIER.sub(lambda match: _filter_identifier(match[0], replace), _OTHER_CHARACTERS.sub("?", cut))


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


REMOVED = "removed"
"""Replaces values of an unexpected form. It has no setting's form itself, so analysis redacts it too."""
OTHER_SCRIPT = "train.py"
"""Replaces the name of a script that is not a known one."""
_OTHER_SETTING = "other"

_LONG_NUMBER = re.compile(r"(?<![\d.])\d{15}", re.ASCII)
"""No setting counts to 10^15: this is the number of a card or an account. Digits behind a point are none."""


def reduce_command(words: Sequence[str], scripts: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """The words to keep, and the words left out with the pieces of those that hold several.

    Kept are known settings with values of their form, and the script's name if it is one of ``scripts``. Left out are
    values of unknown options, paths, and all of the launcher.
    """
    program = find_program(words)
    reduced = ["python"]
    if program.script is not None:
        names = (program.file_name or OTHER_SCRIPT, f"{program.script_name}.py")
        reduced.append(next((name for name in names if name in scripts), OTHER_SCRIPT))
    dialect = find_dialect(program)
    if dialect == "bridge":
        reduced += _bridge_words(program.arguments)
    elif dialect == "megatron_lm":
        reduced += _megatron_words(program.arguments)
    pieces = {piece for word in words for piece in (word, *word.split())}  # `bash -c "..."` holds many in one word
    return reduced, frozenset(pieces - set(reduced))


def _megatron_words(arguments: Sequence[str]) -> list[str]:
    table = config_keys()
    reduced: list[str] = []
    index = 0
    while index < len(arguments):
        flag, has_equals, attached = arguments[index].partition("=")
        index += 1
        key = keys_by_flag().get(flag)
        if key is None:
            if flag in table.shorthands or flag in table.defaults_unknown_with:
                reduced.append(flag)
            continue
        if has_equals:
            reduced.append(f"{flag}={_redact(key, [attached])[0]}")
            continue
        reduced.append(flag)
        if key.type == "bool":
            continue
        end = len(arguments) if takes_several_words(key.type) else index + 1
        values = list(takewhile(lambda word: not is_flag(word), arguments[index:end]))
        index += len(values)
        reduced += _redact(key, values)
    return reduced


def _redact(key: ConfigKey, words: Sequence[str]) -> Sequence[str]:
    """``words`` where they are a value of ``key``, else REMOVED."""
    is_shown = shown_words(key, words) is not None and not any(map(_LONG_NUMBER.search, words))
    return words if not words or is_shown else [REMOVED]


def _bridge_words(arguments: Sequence[str]) -> list[str]:
    reduced: list[str] = []
    scripts = config_keys().bridge_scripts
    options = scripts.options.keys() | scripts.recipe | scripts.implied.keys()
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        option, has_equals, attached = word.partition("=")
        if option in options:
            reduced.append(f"{option}={_option_value(option, attached)}" if has_equals else option)
            if not has_equals and following and not following.startswith("-") and not is_bridge_override(following):
                reduced.append(_option_value(option, following))
        elif is_bridge_override(word):
            reduced += [_reduce_override(override) for override in read_overrides(word)]
    return reduced


def _option_value(option: str, value: str) -> str:
    """The value of a script's option, or REMOVED. Analysis does not read the recipe's name, so that is removed too."""
    keys = [config_keys().keys[name] for name in config_keys().bridge_scripts.options.get(option, ())]
    is_known = all(
        value == "None" or shown_words(key, value.split(",") if takes_several_words(key.type) else [value]) is not None
        for key in keys
    )
    return value if keys and is_known and not _LONG_NUMBER.search(value) else REMOVED


def _reduce_override(override: Override) -> str:
    """A known setting with its value. Of an unknown one only the section is kept: its presence is informative."""
    section = override.path.partition(".")[0]
    if override.path.startswith(VARIABLE_PREFIX):
        name = override.path.removeprefix(VARIABLE_PREFIX)
        is_known = is_public_variable(name) and not isinstance(override.value, tuple)
        is_shown = is_known and (override.value is None or allowed_variables().shows(name, str(override.value)))
    else:
        key = keys_by_path().get(override.path)
        is_known, is_shown = key is not None, key is not None and shown_value(key, override.value) is not None
    path = override.path if is_known else f"{section}.{_OTHER_SETTING}"
    if override.prefix == "~":
        return f"~{path}"
    value = write_value(override.value) if is_shown else REMOVED
    return f"{override.prefix}{path}={REMOVED if _LONG_NUMBER.search(value) else value}"


def is_public_variable(name: str) -> bool:
    """Whether a report may state the variable, and its name is listed or consists of words of the field.

    Families of variables are open (``NCCL_...``): anyone may put a word of their own into a name.
    """
    if not allowed_variables().allows(name):
        return False
    return name in allowed_variables().names or filter_name(name, lambda _: "") == name
