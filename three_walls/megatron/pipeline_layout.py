"""Reads ``pipeline_model_parallel_layout``: ``Et*11|(t*12|)*2t*13L``, or a list of the layers of every stage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_LETTERS = {"E": "embedding", "L": "loss", "t": "decoder", "m": "mtp"}
_NAMES = ("embedding", "loss", "encoder", "decoder", "mtp")
_LONGEST = 100_000
"""Characters of a layout once its repetitions are written out: a larger number is a mistake, not a model."""


def read_layout(layout: Any, stages: int, layers: int, prediction_layers: Any) -> tuple[str, int | None]:
    """What is wrong with ``layout``, or nothing, and its number of virtual stages if it has that many whole rows.

    ``prediction_layers``: those of multi-token prediction, or None.
    """
    try:
        virtual = count_virtual_stages(layout, stages)
    except ValueError as error:
        return str(error), None
    rows = _read_rows(layout)
    names = [name for row in rows for name in row]
    return next(_find_problems(rows, names, stages, layers, prediction_layers), ""), virtual


def count_virtual_stages(layout: Any, stages: int) -> int:
    """The virtual stages of each of ``stages``; ValueError where ``layout`` is none, or has no whole number of them."""
    rows = _read_rows(layout)
    if len(rows) % stages:
        raise ValueError(f"{len(rows)} stages do not divide over {stages} pipeline ranks")
    return len(rows) // stages


def _read_rows(layout: Any) -> list[list[Any]]:
    """The layers of every stage."""
    return _unroll(layout) if isinstance(layout, str) else [_read_row(row) for row in layout]


def _unroll(text: str) -> list[list[Any]]:
    """``E(t|)*2L`` is Et | t | L."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        repeated = sum(len(match[1]) * int(match[2]) for match in re.finditer(pattern, text))
        if repeated > _LONGEST:
            raise ValueError(f"{text} repeats too much")
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    for letter in text:
        if letter not in (*_LETTERS, "|"):
            raise ValueError(f"Invalid layer character: {letter}")
    return [[_LETTERS[letter] for letter in stage] for stage in text.split("|")]


def _read_row(row: Any) -> list[Any]:
    if not isinstance(row, tuple):
        raise ValueError("pipeline_model_parallel_layout must be a list of lists")
    names = [str(name).strip().lower().removeprefix("layertype.") for name in row]
    for element, name in zip(row, names, strict=True):
        if not isinstance(element, str) or name not in _NAMES:
            raise ValueError(f"{element} is not a valid LayerType")
    return names


def _find_problems(
    rows: list[list[Any]], names: list[Any], stages: int, layers: int, prediction_layers: Any
) -> Iterator[str]:
    if not names or names[0] != "embedding" or names.count("embedding") != 1:
        yield "the first layer, and no other, must be the embedding"
    if not names or names[-1] != "loss" or names.count("loss") != 1:
        yield "the last layer, and no other, must be the loss"
    if names.count("decoder") != layers:
        yield f"{names.count('decoder')} decoder layers do not match num_layers {layers}"
    predicted = names.count("mtp")
    if predicted != (prediction_layers or 0):
        yield f"{predicted} mtp layers do not match mtp_num_layers {prediction_layers}"
    if predicted and "decoder" in names[names.index("mtp") :]:
        yield "decoder layers must be placed before mtp layers"
    last_rows, others = rows[-stages:], rows[:-stages]
    if any("mtp" in row for row in others) or any(row.count("mtp") not in (0, predicted) for row in last_rows):
        yield "all mtp layers must be in one stage, the last virtual one of its rank"
    if "encoder" in names:
        yield "Encoder layer is not supported for flexible pipeline layout"
