"""Which texts of an export stay as they are, and what replaces the others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from three_walls.captures.scrub.secrets import Secrets, looks_random
from three_walls.inputs.nsys.identity import UNNAMED_GPU
from three_walls.inputs.nsys.nccl_payload import FIELD_NAMES
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.scrub import ScrubRules, cut_private, cut_sentence, holds_key, is_safe_text

_CALL = re.compile(r"(cu|nv|nccl)[A-Za-z]\w{0,120}", re.ASCII)
# emit_nvtx appends `, seq = 12, op_id = 3, sizes = [[1, 2], []], input_op_ids = [(0,-1)]` to an operator's name.
_OPERATOR_TAIL = re.compile(r"(, (stashed )?(seq|op_id|sizes|input_op_ids) = [-\d\[\](), ]*)+", re.ASCII)
_TAIL_START = re.compile(r", (stashed )?(seq|op_id|sizes|input_op_ids) = ")
_HASHED = "CompiledFxGraph"


@dataclass(slots=True)
class TextFilter:
    """Filters the texts of one export. The same text is always replaced by the same text."""

    rules: ScrubRules
    secrets: Secrets
    replaced: dict[str, int] = field(default_factory=dict)
    """How many different texts were replaced, by what replaces them (``range`` for range-1, range-2, ...)."""
    kept: set[str] = field(default_factory=set)
    """All texts of the result, without the numbers behind an operator's name."""
    _filtered: dict[tuple[str, str], str] = field(default_factory=dict)

    def filter(self, kind: str, text: str) -> str:
        """``text``, or what replaces it. ``kind`` is one of ``tables.scrub.COLUMN_KINDS``."""
        head, tail = _split_operator(text) if kind in ("range_ids", "range_texts") else (text, "")
        filtered = self._filtered.get((kind, head))
        if filtered is None:
            filtered = self._filtered[kind, head] = self._filter_head(kind, head)
            self.kept.add(filtered)
        return filtered + tail

    def _filter_head(self, kind: str, text: str) -> str:
        match kind:
            case "kernel_ids":
                return self._keep_or_number(cut_private(text), "kernel", is_safe=True)
            case "call_ids":
                is_call = _CALL.fullmatch(text) is not None and not holds_key(text)
                return self._keep_or_number(text, "call", is_call or is_safe_text(text))
            case "range_ids" | "range_texts":
                return self._filter_range(text)
            case "gpu_names":
                return text if is_safe_text(text) and not self.secrets.occur_in(text) else UNNAMED_GPU
            case "sentences":
                return self._keep_or_number(cut_sentence(text), "message", not _names_secret(text))
            case "field_names":
                return self._keep_or_number(text, "field", text in FIELD_NAMES)
            case _:
                return self._keep_or_number(text, "label", is_safe_text(text))

    def _filter_range(self, text: str) -> str:
        """``text``, or a number followed by the parts of it that analysis looks for."""
        filtered = self._keep_or_number(text, "range", self._is_safe_range(text))
        parts = [] if filtered == text else [part[0] for part in self.rules.any_part.finditer(text)]
        return " ".join([filtered, *parts])

    def _is_safe_range(self, text: str) -> bool:
        if is_safe_text(text):
            return True
        if holds_key(text) or not any(row.pattern.fullmatch(text) for row in self.rules.ranges):
            return False
        return _HASHED in text or not looks_random(text)

    def _keep_or_number(self, text: str, stem: str, is_safe: bool) -> str:
        if is_safe and not self.secrets.occur_in(text):
            return text
        self.replaced[stem] = self.replaced.get(stem, 0) + 1
        return f"{stem}-{self.replaced[stem]}"


def _names_secret(sentence: str) -> bool:
    """Whether it contains an option or a variable that looks secret, and so perhaps its value: ``--token abc``."""
    named = [word.partition("=")[0] for word in sentence.split() if word.startswith("-") or "=" in word]
    return any(map(allowed_variables().looks_secret, named))


def _split_operator(text: str) -> tuple[str, str]:
    """The name of an operator's range and the numbers behind it; a text without such numbers is all name."""
    start = _TAIL_START.search(text)
    if start is None or not _OPERATOR_TAIL.fullmatch(text, start.start()):
        return text, ""
    return text[: start.start()], text[start.start() :]
