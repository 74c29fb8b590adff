"""Which rows an exchange of tokens moves: counted from the routing, so the same on every rank and by hand.

A row is one token's hidden vector. The all-to-all sends a copy for each expert that a token chose. DeepEP and HybridEP
send one for each GPU that holds at least one of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

FP8_BLOCK = 128
"""Values that share a scale of four bytes where rows travel in FP8."""

Choices = Sequence[Sequence[int]]
"""The experts that each token of a GPU chose."""


@dataclass(frozen=True)
class Shape:
    """What one GPU exchanges: ``tokens`` rows of ``hidden`` values, each routed to ``topk`` experts."""

    tokens: int
    hidden: int
    topk: int
    experts_per_gpu: int


def parse_shape(text: str) -> Shape:
    """TOKENS,HIDDEN,TOPK,EXPERTS_PER_GPU. Raises ValueError."""
    sizes = [int(part) for part in text.split(",")]
    if len(sizes) != 4 or min(sizes) < 1:
        raise ValueError(f"{text}: four numbers above 0 are needed")
    return Shape(*sizes)


@cache
def choose_experts(shape: Shape, gpus: int, rank: int) -> Choices:
    """Experts of each token of ``rank``, drawn evenly; the same for the same arguments."""
    drawn = random.Random(f"{shape} {gpus} {rank}")  # a text seed is the same in every process
    return [drawn.sample(range(gpus * shape.experts_per_gpu), shape.topk) for _ in range(shape.tokens)]


def count_copies(choices: Choices, shape: Shape, gpus: int) -> list[int]:
    """Rows to each GPU with a copy for each chosen expert."""
    counts = [0] * gpus
    for experts in choices:
        for expert in experts:
            counts[expert // shape.experts_per_gpu] += 1
    return counts


def count_tokens(choices: Choices, shape: Shape, gpus: int) -> list[int]:
    """Rows to each GPU with one for each token that has an expert there."""
    counts = [0] * gpus
    for experts in choices:
        for gpu in {expert // shape.experts_per_gpu for expert in experts}:
            counts[gpu] += 1
    return counts


def row_bytes(hidden: int, dtype: str) -> int:
    """Bytes of a row in ``bf16``, or in ``fp8`` with its scales."""
    return 2 * hidden if dtype == "bf16" else hidden + 4 * hidden // FP8_BLOCK


def mean_leaving(counts: Sequence[Sequence[int]]) -> float:
    """Rows that leave a GPU, on average; ``counts[a][b]`` are those from GPU a to GPU b.

    As many arrive, so it holds for the way back, too.
    """
    return sum(count for a, row in enumerate(counts) for b, count in enumerate(row) if a != b) / len(counts)


def mean_received(counts: Sequence[Sequence[int]]) -> float:
    """Rows that a GPU receives, on average, its own included."""
    return sum(map(sum, counts)) / len(counts)
