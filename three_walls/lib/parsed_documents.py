"""The documents that ship with the program as JSON, because reading their YAML takes ten times as long.

Each is kept under a digest of the YAML and of the code that reads it, so what was changed is read again. A wheel brings
the JSON along: ``hatch_build.py`` writes it. A checkout keeps it where Python keeps its compiled modules, and keeps
nothing where Python would not (``-B``, a directory that cannot be written). Files from elsewhere, as those of
``--rules``, are always read as YAML.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from three_walls.lib.files import write_texts
from three_walls.lib.problems import Problem
from three_walls.lib.resources import IS_BUNDLED, PARSED_DIR, ROOT, RULES_DIR, TABLES_DIR


def read_parsed(path: Path) -> bytes | None:
    """The document at ``path`` as JSON; None where it is not one of the program's, or not kept as it is now."""
    place = _place_of(path)
    if place is None:
        return None
    try:
        digest, _, text = place.read_bytes().partition(b"\n")
        return text if digest == _digest(path).encode() else None
    except OSError:
        return None


def keep_parsed(path: Path, text: str) -> None:
    """Keeps ``text``, the document at ``path`` as JSON, for the next process."""
    place = _place_of(path)
    if place is not None and not IS_BUNDLED and not sys.dont_write_bytecode:
        with suppress(OSError):
            PARSED_DIR.mkdir(parents=True, exist_ok=True)
            write_texts({place.name: _add_digest(path, text)}, PARSED_DIR)


def write_all(folder: Path) -> None:
    """Writes every document of the rules and tables as JSON into ``folder``, but the cases of rules: tests read them.

    Raises ValueError for a document that is wrong in form.
    """
    from three_walls.lib.yaml import read_document

    texts = {}
    for path in sorted([*RULES_DIR.rglob("*.yaml"), *TABLES_DIR.rglob("*.yaml")]):
        place = _place_of(path)
        if place is None or path.name.endswith(".cases.yaml"):
            continue
        problems: list[Problem] = []
        document = read_document(path, problems)
        if document is None or problems:
            raise ValueError("\n".join(map(str, problems)))
        texts[place.name] = _add_digest(path, json.dumps(document.value))
    write_texts(texts, folder)


def _place_of(path: Path) -> Path | None:
    """Where the document at ``path`` is kept; None for a file that does not ship with the program."""
    is_own = str(path).startswith((f"{RULES_DIR}/", f"{TABLES_DIR}/"))
    return PARSED_DIR / f"{str(path).removeprefix(f'{ROOT}/').replace('/', '.')}.json" if is_own else None


def _add_digest(path: Path, text: str) -> str:
    """What is kept of the document at ``path``, which is ``text`` as JSON."""
    return f"{_digest(path)}\n{text}"


def _digest(path: Path) -> str:
    return sha256(_reader_digest() + path.read_bytes()).hexdigest()


@cache
def _reader_digest() -> bytes:
    return sha256(Path(__file__).with_name("yaml.py").read_bytes()).digest()
