"""GEMMs from PyTorch's operators: which NVTX ranges run one, of what shape, in which direction of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from three_walls.step.operators import Operators, Sizes
from three_walls.tables.nvtx_ranges import LinearLayer, TorchOperators

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, BACKWARD, REPLAY = DIRECTIONS = (
    "forward",
    "input gradient",
    "weight gradient",
    "backward",
    "replay",
)
"""``backward`` where it is one of the two gradients and not known which, or both of them."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """``batch`` GEMMs of an m x k and a k x n matrix, ``count`` times: 2 for both gradients of a linear layer."""

    batch: int
    m: int
    n: int
    k: int
    direction: str
    weight: tuple[int, int] | None = None
    """(n, k) of the weight where it is the GEMM of a linear layer, in whichever direction."""
    tokens: int | None = None
    """Rows of that layer's input."""
    count: int = 1

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each m x n x k."""
        return 2 * self.batch * self.m * self.n * self.k * self.count


def find_gemms(operators: Operators, table: TorchOperators, may_gather_tokens: bool = False) -> dict[int, Gemm]:
    """The GEMM of each range that runs one, by index. A range inside it without a GEMM of its own belongs to it.

    ``may_gather_tokens``: with sequence parallelism a linear layer gathers its tokens itself. Then only its gradient
    shows how many there are, and a layer without a recorded gradient is left out.
    """
    layers = _linear_layers(operators, table, may_gather_tokens)
    gemms: dict[int, Gemm] = {}
    inside: Counter[int] = Counter()
    for index, operator in enumerate(operators.found):
        operands = table.gemms.get(operator.name)
        size = _multiply(operator.sizes, operands) if operands and operator.sizes else None
        if size is None:
            continue
        direction = _direction(operators, index, table)
        enclosing = operators.around(operator.parent)
        layer_index = next((candidate for candidate in enclosing if candidate in layers), None)
        if layer_index is None:
            gemms[index] = Gemm(*size, direction)
            continue
        layer = layers[layer_index]
        if direction == BACKWARD:
            direction = _gradient(size[1:], layer, is_first=not inside[layer_index])
        inside[layer_index] += 1
        gemms[index] = Gemm(*size, direction, (layer.n, layer.k), layer.tokens)
    for index, layer in layers.items():
        direction = _direction(operators, index, table)
        remaining = (2 if direction == BACKWARD else 1) - inside[index]
        if remaining > 0 and layer.is_certain:
            gradient = WEIGHT_GRADIENT if inside[index] else direction
            gemms[index] = Gemm(
                1, layer.tokens, layer.n, layer.k, gradient, (layer.n, layer.k), layer.tokens, remaining
            )
    return gemms


@dataclass(frozen=True, slots=True)
class _Layer:
    """A pass through a linear layer: tokens x k times the transposed n x k weight."""

    tokens: int
    n: int
    k: int
    is_certain: bool
    """Whether ``tokens`` is what was multiplied, even where the layer gathers its tokens itself."""


def _linear_layers(operators: Operators, table: TorchOperators, may_gather_tokens: bool) -> dict[int, _Layer]:
    """Ranges of linear layers, forward and backward, by index.

    The range of a backward pass has the sequence number of its forward pass, and its name with ``Backward`` behind it.
    """
    forward: dict[tuple[str, int | None], int] = {}
    sizes: dict[int, tuple[int, int, int]] = {}
    for index, operator in enumerate(operators.found):
        layer = table.linear_layers.get(operator.name)
        size = _read_layer(operator.sizes, layer) if layer and operator.sizes else None
        if size is not None:
            sizes[index] = size
            forward[operator.name, operator.sequence] = index
    forward_of: dict[int, int] = {index: index for index in sizes}
    gathered: dict[tuple[str, tuple[int, int, int]], int] = {}
    for index, operator in enumerate(operators.found):
        name = operator.name.removesuffix("Backward")
        if name == operator.name or operator.sequence is None or (name, operator.sequence) not in forward:
            continue
        forward_index = forward_of[index] = forward[name, operator.sequence]
        size = sizes[forward_index]
        rows = _rows_of_gradient(operator.sizes, size[1])
        if rows is not None:
            gathered[name, size] = max(rows, size[0], gathered.get((name, size), 0))
    layers: dict[int, _Layer] = {}
    for index, forward_index in forward_of.items():
        tokens, n, k = size = sizes[forward_index]
        rows = gathered.get((operators.found[forward_index].name, size))
        layers[index] = _Layer(rows or tokens, n, k, is_certain=rows is not None or not may_gather_tokens)
    return layers


def _rows_of_gradient(sizes: Sizes | None, n: int) -> int | None:
    """Rows of the gradient [..., n] that a backward range was called with; None where it has another shape."""
    if not sizes or len(sizes[0]) < 2 or sizes[0][-1] != n:
        return None
    return prod(sizes[0][:-1])


def _read_layer(sizes: Sizes, layer: LinearLayer) -> tuple[int, int, int] | None:
    """(tokens, n, k) from the shapes of the arguments; None where they are not those of a linear layer."""
    if layer.input >= len(sizes) or len(sizes[layer.input]) < 2:
        return None
    *leading, k = sizes[layer.input]
    candidates = sizes[layer.input + 1 :] if layer.weight is None else sizes[layer.weight : layer.weight + 1]
    weight = next((size for size in candidates if len(size) == 2 and size[1] == k), None)
    return (prod(leading), weight[0], k) if weight else None


def _multiply(sizes: Sizes, operands: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k) of the product of two operands; None where their shapes do not fit."""
    if max(operands) >= len(sizes):
        return None
    left, right = (sizes[position] for position in operands)
    match left, right:
        case (m, k), (rows, n) if k == rows:
            return 1, m, n, k
        case (batch, m, k), (batches, rows, n) if k == rows and batch == batches:
            return batch, m, n, k
        case (m, k), (_, rows, n) if k == rows:  # grouped: each token times the matrix of its group
            return 1, m, n, k
        case (_, m, k), (rows, n) if k == rows:
            return 1, m, n, k
    return None


def _direction(operators: Operators, index: int, table: TorchOperators) -> str:
    """FORWARD, BACKWARD or REPLAY, from the innermost enclosing range that shows it."""
    for enclosing in operators.around(index):
        name = operators.found[enclosing].name
        if name in table.replays:
            return REPLAY
        if table.backward.search(name):
            return BACKWARD
    return FORWARD


def _gradient(size: tuple[int, int, int], layer: _Layer, is_first: bool) -> str:
    """Which gradient a GEMM (m, n, k) in the backward range of a linear layer computes.

    The input gradient sums over the weight's rows, the weight gradient over the tokens. Where the shape fits both, the
    layer computes the input gradient first.
    """
    tokens, n, k = layer.tokens, layer.n, layer.k
    fits_input = size == (tokens, k, n)
    fits_weight = size in ((n, k, tokens), (k, n, tokens))
    if fits_input and fits_weight:
        return INPUT_GRADIENT if is_first else WEIGHT_GRADIENT
    if fits_input:
        return INPUT_GRADIENT
    return WEIGHT_GRADIENT if fits_weight else BACKWARD


def gemms_of_launches(
    operators: Operators, gemms: Mapping[int, Gemm], launches: list[tuple[int | None, int | None]]
) -> list[int | None]:
    """Per launch (thread, time) the index of the innermost enclosing range that runs a GEMM; None if there is none."""
    ranges: list[int | None] = []
    for thread, at_ns in launches:
        around = operators.around(operators.innermost(thread, at_ns))
        ranges.append(next((index for index in around if index in gemms), None))
    return ranges
