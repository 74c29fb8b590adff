"""PyTorch's operators: which are matrix products, which surround fusible work; ``tables/torch-operators.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from three_walls.resources import TABLES_DIR
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node

AFTER_INPUT = "after_input"
FUSIBLE_WORK = LOSS, GRADIENT_SUM, BARRIER = ("loss", "gradient_sum", "barrier")


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """An autograd function that multiplies activations by a weight."""

    function: str
    input: int
    """Position of the activations among its arguments."""
    weight: int | None
    """Position of the weight; None: the first matrix behind the input that fits it."""


@dataclass(frozen=True, slots=True)
class FusibleWork:
    """``work`` is what runs inside ranges whose name ``inside`` is found in."""

    work: str
    inside: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class TorchOperators:
    """``products``: per operator the positions of its two factors. ``linear_layers``: by function."""

    products: Mapping[str, tuple[int, int]]
    linear_layers: Mapping[str, LinearLayer]
    backward: re.Pattern[str]
    replays: tuple[str, ...]
    fusible: tuple[FusibleWork, ...]


def load_torch_operators(path: Path) -> TorchOperators:
    """The table of ``path``. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("products", "linear_layers", "backward", "replays", "fusible"))
    products = [_read_product(problems, node) for node in problems.items(top.get("products"))]
    layers = [_read_layer(problems, node) for node in problems.items(top.get("linear_layers"))]
    fusible = [_read_fusible(problems, node) for node in problems.items(top.get("fusible"))]
    backward = problems.pattern(top.get("backward"))
    replays = tuple(problems.text(one) for one in problems.items(top.get("replays")))
    problems.raise_if_any()
    return TorchOperators(dict(products), {one.function: one for one in layers}, backward, replays, tuple(fusible))


@cache
def torch_operators() -> TorchOperators:
    """The table that ships with the rules."""
    return load_torch_operators(TABLES_DIR / "torch-operators.yaml")


def _read_product(problems: Problems, node: Node) -> tuple[str, tuple[int, int]]:
    row = problems.fields(node, ("operator", "operands"))
    positions = [_read_position(problems, one) for one in problems.items(row.get("operands"))]
    if len(positions) != 2:
        problems.add(node, f"expected the positions of two factors, found {len(positions)}")
        positions = [0, 1]
    return problems.text(row.get("operator")), (positions[0], positions[1])


def _read_layer(problems: Problems, node: Node) -> LinearLayer:
    row = problems.fields(node, ("function", "input", "weight", "source"))
    problems.text(row.get("source"))
    weight = row.get("weight")
    is_behind = weight is not None and weight.value == AFTER_INPUT
    return LinearLayer(
        problems.text(row.get("function")),
        _read_position(problems, row.get("input")),
        None if is_behind else _read_position(problems, weight),
    )


def _read_fusible(problems: Problems, node: Node) -> FusibleWork:
    row = problems.fields(node, ("work", "inside", "because"))
    problems.text(row.get("because"))
    return FusibleWork(problems.choice(row.get("work"), FUSIBLE_WORK), problems.pattern(row.get("inside")))


def _read_position(problems: Problems, node: Node | None) -> int:
    return int(problems.number(node, 0, 99))
