"""What the NVTX ranges around a kernel's launch show of it.

``collective-owners.yaml``: range -> whose collective an NCCL kernel is. ``torch-operators.yaml``: PyTorch operator ->
which GEMM it runs, or which unfused work it surrounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import BeforeValidator

from three_walls.lib.load_documents import ByName, NamedRow, Pattern, Text, between, compiled, load_table
from three_walls.lib.resources import TABLES_DIR

DATA_PARALLEL, TENSOR_PARALLEL, TOKENS = "data_parallel", "tensor_parallel", "tokens"


@dataclass(frozen=True, slots=True)
class OwnerTexts:
    """Ranges that contain one of ``texts`` surround collectives of ``owner``."""

    owner: Literal["data_parallel", "tensor_parallel", "tokens"]
    texts: tuple[Text, ...]
    reason: Text
    """Who calls the collective."""


@dataclass(frozen=True, slots=True)
class CollectiveOwners:
    """``collective-owners.yaml``."""

    owners: tuple[OwnerTexts, ...]
    """In order of precedence."""


Position = Annotated[int, between(0, 99)]
"""Position among the arguments of an operator, from 0."""


def _read_weight(position: object) -> object:
    return None if position == "after_input" else position


@dataclass(frozen=True, slots=True)
class LinearLayer(NamedRow):
    """An autograd function that multiplies activations by a weight; its name is the function's."""

    input: Position
    """The activations, ``[..., k]``."""
    weight: Annotated[Position | None, BeforeValidator(_read_weight)]
    """The weight, ``[n, k]``. None (``after_input`` in the file) is the first matrix after the input whose rows have
    length k."""
    source: Text
    """Whose function it is."""


@dataclass(frozen=True, slots=True)
class AttentionFunction:
    """An autograd function that each pass of attention runs once, where no kernel has attention's name."""

    function: Text
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True)
class UnfusedOps:
    """Work that a fused kernel would take over, by the ranges around its launch."""

    work: Literal["loss", "wgrad_accumulation", "barrier"]
    inside: Pattern
    """Searched in the names of the ranges around the launch."""
    reason: Text
    """What runs there."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The fastest that a fused kernel can be: the time of ``operator`` in the sequence, times ``fraction``."""

    operator: Text
    fraction: Annotated[float, between(0.01, 1)]
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSequence:
    """Unfused work as the operators that it calls one after the other."""

    work: Literal["rope", "router_topk"]
    operators: Annotated[re.Pattern[str], compiled(re.VERBOSE)]
    """Matches names of operators, each followed by ``;``. One fused kernel takes over each named group."""
    follows: Text | None = None
    """After each operator of this name lies one match. None: before each attention kernel lie two, or four, ..."""
    sums_gradients: bool
    """Whether gradients that autograd sums between the nodes of the backward pass are sums within the work."""
    paces: Mapping[str, Pace]
    """By named group."""
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True)
class TorchOperators:
    """``torch-operators.yaml``."""

    gemms: Mapping[str, tuple[Position, Position]]
    """Operator that is one GEMM -> positions of the two factors among its arguments."""
    linear_layers: ByName[LinearLayer]
    """By autograd function."""
    backward: Pattern
    """Searched in names of ranges; the backward pass runs inside of them."""
    replays: frozenset[Text]
    """Ranges of the backward pass that run a part of the forward pass again."""
    attention: tuple[AttentionFunction, ...]
    unfused: tuple[UnfusedOps, ...]
    """The first row that matches from the inside out counts."""
    sequences: tuple[OperatorSequence, ...]


@cache
def collective_owners() -> CollectiveOwners:
    """The owners of collectives that ship with the program."""
    return load_table(TABLES_DIR / "collective-owners.yaml", CollectiveOwners)


@cache
def torch_operators() -> TorchOperators:
    """The operators that ship with the program."""
    return load_table(TABLES_DIR / "torch-operators.yaml", TorchOperators)
