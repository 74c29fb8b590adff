"""Which texts stay as they are, and what stands for the others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from three_walls.knowledge.environment_variables import allowed_variables
from three_walls.knowledge.scrub_rules import ScrubRules
from three_walls.scrub.secrets import Secrets
from three_walls.scrub.traits import cut_paths, looks_random
from three_walls.trace.nccl_payload import FIELD_NAMES

_CALL = re.compile(r"[A-Za-z_]\w{0,120}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z][\w ().,:%\[\]+-]{0,120}", re.ASCII)
# emit_nvtx appends `, seq = 12, op_id = 3, sizes = [[1, 2], []], input_op_ids = [(0,-1)]` to an operator's name.
_OPERATOR_TAIL = re.compile(r"(, (stashed )?(seq|op_id|sizes|input_op_ids) = [-\d\[\](), ]*)+", re.ASCII)
_TAIL_START = re.compile(r", (stashed )?(seq|op_id|sizes|input_op_ids) = ")


@dataclass(slots=True)
class TextJudge:
    """Decides on one export's texts; the same text always gets the same answer.

    ``replaced``: per kind, how many different texts were replaced. ``kept``: what stays, each once and without the
    numbers behind an operator's name.
    """

    rules: ScrubRules
    secrets: Secrets
    replaced: dict[str, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def judge(self, kind: str, text: str) -> str:
        """``text``, or what stands for it. ``kind`` is one of knowledge.scrub_rules.COLUMN_KINDS."""
        head, tail = _split_operator(text) if kind in ("range_ids", "range_texts") else (text, "")
        found = self._known.get((kind, head))
        if found is None:
            found = self._known[kind, head] = self._decide(kind, head)
            self.kept.add(found)
        return found + tail

    def _decide(self, kind: str, text: str) -> str:
        match kind:
            case "kernel_ids":
                return self._or_pseudonym(cut_paths(text), "kernel", is_harmless=True)
            case "call_ids":
                return self._or_pseudonym(text, "call", _CALL.fullmatch(text) is not None)
            case "range_ids" | "range_texts":
                return self._or_pseudonym(text, "range", self._is_range(text))
            case "sentences":
                return self._or_pseudonym(cut_paths(text), "message", not _names_a_secret(text))
            case "field_names":
                return self._or_pseudonym(text, "field", text in FIELD_NAMES)
            case _:
                return self._or_pseudonym(text, "label", _LABEL.fullmatch(text) is not None)

    def _is_range(self, text: str) -> bool:
        if not any(pattern.fullmatch(text) for pattern in self.rules.ranges):
            return False
        return "CompiledFxGraph" in text or not looks_random(text)

    def _or_pseudonym(self, text: str, stem: str, is_harmless: bool) -> str:
        if is_harmless and not self.secrets.is_in(text):
            return text
        self.replaced[stem] = self.replaced.get(stem, 0) + 1
        return f"{stem}-{self.replaced[stem]}"


def _names_a_secret(sentence: str) -> bool:
    """Whether an option or a variable that looks secret is in it, and so maybe its value: ``--token abc``."""
    named = [word.partition("=")[0] for word in sentence.split() if word.startswith("-") or "=" in word]
    return any(map(allowed_variables().looks_secret, named))


def _split_operator(text: str) -> tuple[str, str]:
    """Name and numbers of an operator's range; a text without such numbers is all name."""
    start = _TAIL_START.search(text)
    if start is None or not _OPERATOR_TAIL.fullmatch(text, start.start()):
        return text, ""
    return text[: start.start()], text[start.start() :]
