"""PyTorch's operators: which are GEMMs, which surround unfused work; ``tables/torch-operators.yaml``."""

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
FUSIBLE_WORK = LOSS, WGRAD_ACCUMULATION, BARRIER = ("loss", "wgrad_accumulation", "barrier")


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """An autograd function that multiplies activations by a weight."""

    function: str
    input: int
    """Position of the activations among its arguments."""
    weight: int | None
    """Position of the weight; None: the first matrix behind the input that fits it."""


@dataclass(frozen=True, slots=True)
class UnfusedOps:
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
    unfused: tuple[UnfusedOps, ...]


def load_torch_operators(path: Path) -> TorchOperators:
    """The table of ``path``. Raises RuleBaseError with every problem of the file."""
    problems = Problems()
    top = problems.fields(load_strict(path, problems), ("products", "linear_layers", "backward", "replays", "unfused"))
    products = [_read_gemm(problems, node) for node in problems.items(top.get("products"))]
    layers = [_read_layer(problems, node) for node in problems.items(top.get("linear_layers"))]
    unfused = [_read_unfused(problems, node) for node in problems.items(top.get("unfused"))]
    backward = problems.pattern(top.get("backward"))
    replays = tuple(problems.text(one) for one in problems.items(top.get("replays")))
    problems.raise_if_any()
    return TorchOperators(dict(products), {one.function: one for one in layers}, backward, replays, tuple(unfused))


@cache
def torch_operators() -> TorchOperators:
    """The table that ships with the rules."""
    return load_torch_operators(TABLES_DIR / "torch-operators.yaml")


def _read_gemm(problems: Problems, node: Node) -> tuple[str, tuple[int, int]]:
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


def _read_unfused(problems: Problems, node: Node) -> UnfusedOps:
    row = problems.fields(node, ("work", "inside", "reason"))
    problems.text(row.get("reason"))
    return UnfusedOps(problems.choice(row.get("work"), FUSIBLE_WORK), problems.pattern(row.get("inside")))


def _read_position(problems: Problems, node: Node | None) -> int:
    return int(problems.number(node, 0, 99))
