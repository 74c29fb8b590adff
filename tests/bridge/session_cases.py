"""Seeded tuning sessions: what somebody turns on together on one machine, now and then with one prerequisite missing.

A session joins two to five features of ``sessions.yaml``, so that most sessions are valid and what Bridge compares
across features is met. A third of the sessions lose one line. The GPU and the release of Transformer Engine vary. The
same seed gives the same sessions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import yaml

from tests.bridge.override_cases import H100, Machine, OverrideCase
from three_walls.tables.bridge_releases import bridge_schema

GPUS = (
    H100,
    replace(H100, gpu="NVIDIA H200"),
    Machine("NVIDIA A100-SXM4-80GB", (8, 0)),
    Machine("NVIDIA L40S", (8, 9)),
    Machine("NVIDIA B200", (10, 0)),
    Machine("NVIDIA GB200", (10, 0)),
    Machine("NVIDIA B300 SXM6 AC", (10, 3)),
    Machine("NVIDIA GB300", (10, 3)),
    Machine("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
)
ENGINES = ("2.5.0", "2.8.0", "2.10.0", "2.12.0", "2.14.1", "2.20.2")
"""Releases of Transformer Engine, on both sides of every one that is compared."""


@cache
def bundles() -> Mapping[str, Sequence[tuple[str, ...]]]:
    """``sessions.yaml``: the alternatives of each feature, as the lines that turn them on."""
    loaded = yaml.safe_load((Path(__file__).parent / "sessions.yaml").read_text(encoding="utf-8"))
    return {
        feature: [tuple(_expand(text, loaded["shared"])) for text in alternatives]
        for feature, alternatives in loaded["bundles"].items()
    }


def _expand(text: str, shared: Mapping[str, str]) -> Iterator[str]:
    for word in text.split():
        yield from _expand(shared[word], shared) if word in shared else (word,)


def make_sessions(release: str, seed: int, count: int, bases: int) -> list[OverrideCase]:
    """``count`` sessions for ``bases`` base configurations."""
    source = random.Random(f"session {release} {seed}")
    known = {feature: _known_in(release, alternatives) for feature, alternatives in bundles().items()}
    features = sorted(feature for feature, alternatives in known.items() if alternatives)
    chosen = [source.sample(features, source.randint(2, 5)) for _ in range(count)]
    return [_make_session(source, [known[feature] for feature in session], bases) for session in chosen]


def _known_in(release: str, alternatives: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those whose every setting the release has."""
    schema = bridge_schema(release)
    return [
        lines
        for lines in alternatives
        if all(_path_of(line).isupper() or "_target_" in line or schema.find(_setting_of(line)) for line in lines)
    ]


def _setting_of(line: str) -> str:
    """The section and the field, without what lies in an object there."""
    return ".".join(_path_of(line).split(".")[:2])


def _path_of(line: str) -> str:
    return line.partition("=")[0].lstrip("+")


def _make_session(source: random.Random, features: Sequence[Sequence[tuple[str, ...]]], bases: int) -> OverrideCase:
    """One alternative of each feature. Of a setting that several give, the last counts, as somebody edits a list."""
    lines: dict[str, str] = {}
    for alternatives in features:
        for line in source.choice(alternatives):
            lines.pop(_path_of(line), None)
            lines[_path_of(line)] = line
    is_whole = source.random() >= 1 / 3
    if not is_whole:
        del lines[source.choice(list(lines))]
    variables = {path: line.partition("=")[2] for path, line in lines.items() if path.isupper()}
    return OverrideCase(
        "session" if is_whole else "one line less",
        source.randrange(bases),
        tuple(line for path, line in lines.items() if path not in variables),
        replace(source.choice(GPUS), transformer_engine=source.choice(ENGINES)),
        variables,
    )
