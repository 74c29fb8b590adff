"""What must hold whatever the input is: exit codes, messages, files and, where there is a report, its sums."""

from __future__ import annotations

import json
import lzma
import re
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from tests.fuzz.case import Case
from tests.fuzz.values import MARKUP

EXIT_CODES = {
    "analyze": {0, 2, 3, 4, 5},
    "doctor": {0, 2, 3, 4},
    "scrub": {0, 2, 3},
    "rules": {0, 1, 2, 5},
    "verify": {0, 1, 2, 3},
    "capture": {0, 2},
    "load-report": {0, 2},
}
"""Command -> the exit codes that its help and docs/reliability.md document."""

REPORT_FILES = ("overrides.txt", "report.html", "report.json")

_ERROR = re.compile(r"three-walls: error: .+")
_PAGE_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_MOST_MESSAGE_CHARACTERS = 4_000
"""Of an error line, beyond the words of the command that it may repeat."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run did."""

    exit_code: int
    escaped: str
    """The exception that passed ``main``; empty where none did."""
    stdout: bytes
    stderr: bytes
    cpu_s: float


def find_broken_laws(case: Case, outcome: Outcome, directory: Path, given: dict[str, str]) -> Iterator[str]:
    """Each law that the run broke, as ``law: what was found``.

    ``given``: what :func:`describe_files` returned for the case's directory before the run.
    """
    command = case.words[0]
    if outcome.escaped:
        yield f"escaped: {outcome.escaped}"
        return
    if b"the inputs take more memory than there is" in outcome.stderr:
        yield "memory: more than a case of this size explains"
    if outcome.exit_code not in EXIT_CODES[command]:
        message = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
        yield f"exit-code: {outcome.exit_code}: {message[-1] if message else 'no message'}"[:600]
        return
    yield from _check_messages(outcome, _MOST_MESSAGE_CHARACTERS + sum(map(len, case.words)))
    yield from _check_files(case, outcome, directory, given)
    yield from _check_private(case, outcome, directory, set(given))
    report = directory / "out" / "report.json"
    if command == "analyze" and outcome.exit_code == 0 and report.exists():
        yield from check_report(report)


def describe_files(directory: Path) -> dict[str, str]:
    """Every path below ``directory``, with what is there: a digest of a file's bytes, a link's target, or its kind."""
    import hashlib

    found = {}
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            what = hashlib.sha256(path.read_bytes() if mode & 0o400 else b"").hexdigest()
        else:
            what = str(path.readlink()) if stat.S_ISLNK(mode) else str(stat.S_IFMT(mode))
        found[str(path.relative_to(directory))] = what
    return found


_LEFT_OUT = "three-walls: warning: A trace is left out, and nothing is known of its ranks: "
"""Of several traces those that cannot be read are named, and the others are analyzed."""


def _check_messages(outcome: Outcome, most_characters: int) -> Iterator[str]:
    text = outcome.stderr.decode("utf-8", "replace")
    lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
    if outcome.exit_code in (0, 1):
        if [line for line in lines if line and not line.startswith(_LEFT_OUT)]:
            yield f"stderr: printed although nothing failed: {text[:300]!r}"
        return
    if outcome.exit_code != 5 and len(lines) != 1:
        yield f"stderr: {len(lines)} lines: {text[:400]!r}"
    if not _ERROR.match(lines[0]):
        yield f"stderr: no error line: {text[:300]!r}"
    if outcome.exit_code != 5 and len(text) > most_characters:
        yield f"stderr: a line of {len(text)} characters: {text[:200]!r}"
    for name, printed in (("stderr", outcome.stderr), ("stdout", outcome.stdout)):
        if control := _find_control(printed.decode("utf-8", "replace")):
            yield f"{name}: a raw control character {control!r}"


def _find_control(text: str) -> str:
    """A character that a terminal would obey, or that changes the direction of text; empty if there is none."""
    if text.isascii() and text.isprintable():
        return ""
    directions = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    found = (
        letter
        for letter in text
        if letter not in "\n\t" and (unicodedata.category(letter) == "Cc" or letter in directions)
    )
    return next(found, "")


def _check_files(case: Case, outcome: Outcome, directory: Path, given: dict[str, str]) -> Iterator[str]:
    now = describe_files(directory)
    for name, what in given.items():
        if now.get(name) != what:
            yield f"input: {name!r} was changed"
    new = set(now) - set(given)
    expected = _expected_files(case, outcome)
    if expected is not None:  # each entry of the plan has files of its own
        new = {name for name in new if not _ENTRY_FILE.fullmatch(name)}
    if expected is not None and new != expected - set(given):
        yield f"files: expected {sorted(expected - set(given))}, found {sorted(new)}"


_ENTRY_FILE = re.compile(r".*/overrides(?:/\d\d-[a-z0-9-]+\.(?:bridge\.txt|megatron\.txt|env|py))?")


def _expected_files(case: Case, outcome: Outcome) -> set[str] | None:
    """The paths that the command may have made; None where only its own choice of name says."""
    words = case.words
    if outcome.exit_code != 0 or words[0] in ("doctor", "rules", "verify", "capture", "load-report"):
        return set()
    if words[0] == "scrub":
        return {words[2]}
    if "--out" not in words:
        return None
    out = words[words.index("--out") + 1]
    return {out, *(f"{out}/{name}" for name in REPORT_FILES)}


def _check_private(case: Case, outcome: Outcome, directory: Path, given: set[str]) -> Iterator[str]:
    """No planted text, markup or control character in anything that was written."""
    written = {"stdout": outcome.stdout, "stderr": outcome.stderr}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if name not in given and path.is_file():
            written[name] = path.read_bytes()
    for name, content in written.items():
        if name.endswith(".xz"):
            content = lzma.decompress(content)
        elif name.endswith(".zst"):
            content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
        for text in case.planted:
            if any(text.encode(code) in content for code in ("utf-8", "utf-16-le", "utf-16-be")):
                yield f"planted: {text!r} is in {name!r}"
        if name.endswith("report.html"):
            if MARKUP.encode() in content:
                yield f"markup: {name} holds a raw tag"
            if control := _PAGE_CONTROLS.search(content):
                yield f"control: {control[0]!r} in {name} at {control.start()}"
        is_text = name.endswith(("overrides.txt", "report.json")) or _ENTRY_FILE.fullmatch(name)
        if is_text and (control := _find_control(content.decode("utf-8", "replace"))):
            yield f"control: {control!r} in {name}"


def check_report(path: Path) -> Iterator[str]:
    """The sums and numbers of a report.json."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON number")

    try:
        report = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except ValueError as error:
        yield f"json: {error}"
        return
    budget = sum(row["ns"] for row in report["budget"])
    if report["budget"] and budget != report["verdict"]["step_ns"]:
        yield f"sum: the budget is {budget} of a step of {report['verdict']['step_ns']} ns"
    for rank in report["ranks"]:
        yield from _check_rank(rank)
    names = [("budget", row["bucket"], row["ns"]) for row in report["budget"]]
    names += [("gap", cause["cause"], cause["ns"]) for rank in report["ranks"] for cause in rank["gap_causes"]]
    yield from (f"negative: {kind} {name} is {ns}" for kind, name, ns in names if ns < 0)
    if len(path.read_bytes()) % 8 == 0:  # validation takes as long as an analysis, so only a share is validated
        yield from _check_schema(report)


def _check_rank(rank: dict[str, Any]) -> Iterator[str]:
    for step in rank["steps"]:
        if step["kept"] and sum(step["budget"].values()) != step["end_ns"] - step["start_ns"]:
            yield f"sum: the buckets of step {step['index']} of rank {rank['rank']} do not sum to the step"
    for name, time in rank["communication"].items():
        if time["exposed_ns"] + time["hidden_ns"] != time["busy_ns"]:
            yield f"sum: exposed and hidden {name} do not sum to busy"


def _check_schema(report: Any) -> Iterator[str]:
    from tests.report_schema import report_validator

    errors = report_validator().iter_errors(report)
    yield from (f"schema: {error.json_path}: {error.message[:200]}" for error in errors)
