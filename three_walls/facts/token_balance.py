"""How evenly tokens reach the experts of one rank: over experts, layers and micro-batches of the step.

The shapes of the experts' forward GEMMs state their tokens. A pass is one MoE layer on one micro-batch: the experts'
GEMMs with no GEMM of another layer between them. Where the experts ran as one grouped GEMM, its shape gives the tokens
of all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from three_walls.lib.declare import fact
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.step.gemms import FORWARD, Gemm
from three_walls.step.step_view import RunView, StepView

EXPERT_INPUT, EXPERT_OUTPUT = "expert input", "expert output"
"""Roles of the experts' two weights."""


@dataclass(frozen=True, slots=True)
class ExpertPass:
    """One MoE layer on one micro-batch: the tokens of each forward GEMM of the experts' input weight."""

    tokens: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.tokens)


@fact("count", "the most tokens of one expert")
def expert_tokens_largest_count(step: StepView, expert_passes: tuple[ExpertPass, ...]) -> Measurement[int]:
    """Most tokens that one expert of the rank got in a layer and micro-batch."""
    if _count_calls(expert_passes) == 1 and _count_experts(step.run) != 1:
        return missing("the experts ran as one grouped GEMM: its shape gives the tokens of all of them together")
    return known(max(max(each.tokens) for each in expert_passes))


@fact("ratio", "the imbalance of tokens per expert")
def expert_tokens_largest_ratio(
    step: StepView, expert_passes: tuple[ExpertPass, ...], expert_tokens_largest_count: int
) -> float:
    """Most tokens that one expert of the rank got in a layer and micro-batch, over the mean of all of its experts,
    layers and micro-batches in the step. Experts without tokens count."""
    calls = max(_count_experts(step.run) or 0, _count_calls(expert_passes))
    mean = sum(each.total for each in expert_passes) / (len(expert_passes) * calls)
    return expert_tokens_largest_count / mean


@fact("ratio", "the imbalance of tokens per layer")
def pass_tokens_largest_ratio(expert_passes: tuple[ExpertPass, ...], received_tokens_count: int) -> float:
    """Most tokens that the experts of the rank got together in a layer and micro-batch, over the mean of all layers and
    micro-batches in the step."""
    return max(each.total for each in expert_passes) * len(expert_passes) / received_tokens_count


@fact("count", "the tokens received by the rank's experts")
def received_tokens_count(expert_passes: tuple[ExpertPass, ...]) -> int:
    """Tokens that the experts of the rank got in the forward passes of the step."""
    return sum(each.total for each in expert_passes)


@fact("ratio", "the rank's share of received tokens")
def received_tokens_ratio(
    step: StepView, expert_passes: tuple[ExpertPass, ...], received_tokens_count: int
) -> Measurement[float]:
    """Tokens that the experts of the rank got, over what they would get if all experts got equally many, by the config.
    Above 1 the rank works for other ranks too."""
    balanced = _balanced_tokens(step.run)
    if not balanced:
        return missing("the config does not state the sizes from which an even share follows")
    return known(received_tokens_count / (balanced * len(expert_passes)))


@fact("ratio", "the imbalance of received tokens between ranks")
def received_tokens_rank_ratio(
    received_by_rank: tuple[int | None, ...], received_tokens_count: Measurement[int], world_size: Measurement[int]
) -> Measurement[float]:
    """Tokens received by the captured rank that got most, over the mean of the captured ranks; 1 where there is one."""
    if world_size.value == 1:
        return known(1.0)
    if len(received_by_rank) < 2:
        return missing("needs the traces of several ranks")
    counts = [count for count in received_by_rank if count]
    if len(counts) == len(received_by_rank):
        return known(max(counts) * len(counts) / sum(counts))
    unknown = "the operators of some rank do not show the tokens of its experts"
    return missing(received_tokens_count.missing_reason or unknown)


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


def _count_experts(run: RunView) -> int | None:
    """Experts of a layer on the rank; None where not known."""
    experts, ranks = run.config.whole_number("num_moe_experts"), run.layout.expert
    return experts // ranks if experts and ranks else None


def _count_calls(passes: tuple[ExpertPass, ...]) -> int:
    """The most GEMMs of the experts' input weight in a pass."""
    return max(len(each.tokens) for each in passes)


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
