"""How evenly tokens reach the experts of one rank: over experts, layers and micro-batches of the step.

The shapes of the experts' forward GEMMs state their tokens. A pass is one MoE layer on one micro-batch: the experts'
GEMMs with no GEMM of another layer between them. Where the experts ran as one grouped GEMM, its shape gives the tokens
of all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from three_walls.lib.fact import FactGroup, Measurements
from three_walls.lib.measurement import Measurement, known, known_or_missing, missing
from three_walls.step.gemms import FORWARD, Gemm
from three_walls.step.step_view import RunView

EXPERT_INPUT, EXPERT_OUTPUT = "expert input", "expert output"
"""Roles of the experts' two weights."""

facts = FactGroup()

EXPERT_TOKENS_LARGEST = facts.fact(
    "expert_tokens_largest_count",
    "count",
    "the most tokens of one expert",
    "Most tokens that one expert of the rank got in a layer and micro-batch.",
)
EXPERT_TOKENS_RATIO = facts.fact(
    "expert_tokens_largest_ratio",
    "ratio",
    "the imbalance of tokens per expert",
    "Most tokens that one expert of the rank got in a layer and micro-batch, over the mean of all of its experts, "
    "layers and micro-batches in the step. Experts without tokens count.",
)
PASS_TOKENS_RATIO = facts.fact(
    "pass_tokens_largest_ratio",
    "ratio",
    "the imbalance of tokens per layer",
    "Most tokens that the experts of the rank got together in a layer and micro-batch, over the mean of all layers and "
    "micro-batches in the step.",
)
RECEIVED_TOKENS = facts.fact(
    "received_tokens_count",
    "count",
    "the tokens received by the rank's experts",
    "Tokens that the experts of the rank got in the forward passes of the step.",
)
RECEIVED_TOKENS_RATIO = facts.fact(
    "received_tokens_ratio",
    "ratio",
    "the rank's share of received tokens",
    "Tokens that the experts of the rank got, over what they would get if all experts got equally many, by the config. "
    "Above 1 the rank works for other ranks too.",
)
RECEIVED_RANK_RATIO = facts.fact(
    "received_tokens_rank_ratio",
    "ratio",
    "the imbalance of received tokens between ranks",
    "Tokens received by the captured rank that got most, over the mean of the captured ranks.",
)


@dataclass(frozen=True, slots=True)
class ExpertPass:
    """One MoE layer on one micro-batch: the tokens of each forward GEMM of the experts' input weight."""

    tokens: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.tokens)


def find_expert_passes(gemms: Iterable[tuple[Gemm, str | None]]) -> tuple[ExpertPass, ...]:
    """``gemms``: of a step, with their roles, in the order in which they were launched."""
    passes: list[ExpertPass] = []
    tokens: list[int] = []
    for gemm, role in gemms:
        if gemm.direction != FORWARD:
            continue
        if role == EXPERT_INPUT and gemm.tokens is not None:
            tokens.append(gemm.tokens)
        elif role != EXPERT_OUTPUT and tokens and EXPERT_INPUT not in (role or ""):
            passes.append(ExpertPass(tuple(tokens)))
            tokens = []
    return (*passes, ExpertPass(tuple(tokens))) if tokens else tuple(passes)


def measure_token_balance(run: RunView, passes: tuple[ExpertPass, ...], reason: str) -> Measurements:
    """Every fact of this group but the comparison of ranks. ``reason``: why there are no passes, where there are none.

    ``passes``: of the step of one rank (find_expert_passes).
    """
    measured = (EXPERT_TOKENS_LARGEST, EXPERT_TOKENS_RATIO, PASS_TOKENS_RATIO, RECEIVED_TOKENS, RECEIVED_TOKENS_RATIO)
    received = sum(each.total for each in passes)
    if not received:
        return dict.fromkeys(measured, missing(reason))
    largest, ratio = _measure_experts(run, passes)
    balanced = _balanced_tokens(run)
    return {
        EXPERT_TOKENS_LARGEST: largest,
        EXPERT_TOKENS_RATIO: ratio,
        PASS_TOKENS_RATIO: known(max(each.total for each in passes) * len(passes) / received),
        RECEIVED_TOKENS: known(received),
        RECEIVED_TOKENS_RATIO: known_or_missing(
            received / (balanced * len(passes)) if balanced else None,
            "the config does not state the sizes from which an even share follows",
        ),
    }


def compare_received(received: Sequence[int | None], reason: str) -> Measurements:
    """The comparison of ranks. ``received``: RECEIVED_TOKENS of each captured rank's step; None where not known."""
    if len(received) < 2:
        return {RECEIVED_RANK_RATIO: missing("needs the traces of several ranks")}
    counts = [count for count in received if count]
    if len(counts) < len(received):
        return {RECEIVED_RANK_RATIO: missing(reason)}
    return {RECEIVED_RANK_RATIO: known(max(counts) * len(counts) / sum(counts))}


def _measure_experts(run: RunView, passes: tuple[ExpertPass, ...]) -> tuple[Measurement[int], Measurement[float]]:
    """EXPERT_TOKENS_LARGEST and EXPERT_TOKENS_RATIO."""
    experts, ranks = run.config.whole_number("num_moe_experts"), run.layout.expert
    local = experts // ranks if experts and ranks else None
    calls = max(len(each.tokens) for each in passes)
    if calls == 1 and local != 1:
        reason = "the experts ran as one grouped GEMM: its shape gives the tokens of all of them together"
        return missing(reason), missing(reason)
    largest = max(max(each.tokens) for each in passes)
    mean = sum(each.total for each in passes) / (len(passes) * max(local or 0, calls))
    return known(largest), known(largest / mean)


def _balanced_tokens(run: RunView) -> int | None:
    """Tokens that the experts of a rank get in one pass if all experts get equally many; None where not known.

    Sequence x micro-batch / CP / TP x top-k, times the ranks that share each expert's weights (expert TP).
    """
    config, layout = run.config, run.layout
    sequence, top_k = config.whole_number("seq_length"), config.whole_number("moe_router_topk")
    sizes = (layout.micro_batch, layout.context, layout.tensor, layout.expert_tensor)
    if not sequence or not top_k or not all(sizes):
        return None
    micro_batch, context, tensor, expert_tensor = (size or 1 for size in sizes)
    return sequence * micro_batch // context // tensor * top_k * expert_tensor
