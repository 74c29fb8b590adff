"""Communication of the representative step: exposed or hidden, transfer or waiting for peers, by its owner.

Exposed is what runs while no compute kernel does. Its transfer is split from waiting in ``step/transfer.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from three_walls.lib.declare import CATALOG, artifact, duration, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.text import in_ms
from three_walls.megatron.parallel_layout import ParallelLayout
from three_walls.step.communication_owners import BY_OPERATION
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, EP_CATEGORIES

MAXIMUM_AMBIGUOUS_FRACTION = 0.01
"""Of the step: with more in SendRecv kernels of unknown owner no time of expert parallelism is given, because some of
that time could be its own."""
MAXIMUM_OPEN_FRACTION = 0.05
"""Of the step: with more in transfer of collectives of unknown owner no data- or tensor-parallel time is stated. Rules
on data and tensor parallelism apply from a twentieth of the step on. With that much time of unknown owner, that time
alone could decide whether a rule applies."""

_OTHER_CATEGORIES = tuple(name for name in COMMUNICATION_CATEGORIES if name not in EP_CATEGORIES)

_EVEN_EXCHANGES = ("moe_router_force_load_balancing", "moe_pad_expert_input_to_capacity")
"""Settings with which all exchanges of tokens have one size."""


@dataclass(frozen=True, slots=True)
class SplitCommunication:
    """Communication of some categories in a step."""

    busy_ns: int
    exposed_ns: int
    transfer_ns: int
    """The exposed part that does not wait for peers."""

    @property
    def wait_ns(self) -> int:
        """The exposed part that waits for peers."""
        return self.exposed_ns - self.transfer_ns


@artifact
def ep_communication(step: StepView) -> SplitCommunication:
    """Expert-parallel communication, also where that of other owners may be among it."""
    return _split(step, EP_CATEGORIES)


@artifact
def collectives(step: StepView) -> SplitCommunication:
    """All other communication."""
    return _split(step, _OTHER_CATEGORIES)


def _split(step: StepView, categories: Collection[str]) -> SplitCommunication:
    exposed_ns = step.union_ns(categories, exposed=True)
    return SplitCommunication(step.union_ns(categories), exposed_ns, step.transferred_ns(categories))


@artifact
def owned_ep_communication(step: StepView, ep_communication: SplitCommunication) -> Measurement[SplitCommunication]:
    """Expert-parallel communication; missing where too many exchanges have no known owner."""
    ambiguous_ns = step.union_ns(("send_recv_ambiguous",))
    if ambiguous_ns <= MAXIMUM_AMBIGUOUS_FRACTION * step.unpaused_ns:
        return known(ep_communication)
    return missing(
        f"SendRecv kernels of {in_ms(ambiguous_ns)} cannot be classified into expert, pipeline and context "
        "exchange: the parallel sizes are not known (capture with -t cuda,nvtx, or profile the launched command)"
    )


@artifact
def step_with_owners(step: StepView) -> Measurement[StepView]:
    """The step; missing where too many collectives have no known owner."""
    unowned_ns = sum(step.transfer_ns.get(category, 0) for category in BY_OPERATION)
    if unowned_ns <= MAXIMUM_OPEN_FRACTION * step.unpaused_ns:
        return known(step)
    return missing(
        f"collectives of {in_ms(unowned_ns)} cannot be classified into tensor and data parallelism: neither "
        "the parallel sizes nor NVTX ranges identify their owner (capture with -t cuda,nvtx and Megatron's --profile, "
        "or profile the launched command)"
    )


@duration("expert-parallel communication time per step", share="expert-parallel communication")
def ep_busy_ns(owned_ep_communication: SplitCommunication) -> int:
    """Time per step in which expert-parallel communication runs: all-to-all, dispatch, combine, notify."""
    return owned_ep_communication.busy_ns


@duration("exposed expert-parallel communication time per step", share="exposed expert-parallel communication")
def ep_exposed_ns(owned_ep_communication: SplitCommunication) -> int:
    """Time per step in which expert-parallel communication runs and no compute kernel does.

    Not the same as: Blocking time: exposed communication may delay nobody. Nor transfer time: part of it is waiting for
    peers.
    """
    return owned_ep_communication.exposed_ns


@duration("hidden expert-parallel communication time per step")
def ep_hidden_ns(owned_ep_communication: SplitCommunication) -> int:
    """Time per step in which expert-parallel communication runs and a compute kernel does too."""
    return owned_ep_communication.busy_ns - owned_ep_communication.exposed_ns


CATALOG.quotient(
    __name__,
    "ep_hidden_of_busy_fraction",
    "hidden expert-parallel communication",
    "Fraction of expert-parallel communication that is hidden behind compute.",
    ("ep_hidden_ns", "ep_busy_ns"),
    whole="all expert-parallel communication",
)


@duration(
    "exposed expert-parallel transfer time per step",
    share="exposed expert-parallel transfer",
)
def ep_transfer_exposed_ns(owned_ep_communication: SplitCommunication) -> int:
    """Time per step in which expert-parallel communication is exposed and does not wait for peers. Where all ranks of
    the group were captured, a call transfers from its last member's arrival to its end. Elsewhere a call counts at most
    what the fastest tenth of the token-carrying calls of its kind took on this rank.

    Not the same as: A measured transfer time where one rank alone was captured: that proxy is low when message sizes
    vary.
    """
    return owned_ep_communication.transfer_ns


@flag(
    "whether the expert-parallel transfer is a lower bound",
    if_true="The exposed expert-parallel transfer time is a lower bound: the sizes of the exchanges were not recorded",
    if_false="The exposed expert-parallel transfer time is no mere lower bound",
)
def ep_transfer_is_lower_bound(step: StepView, ep_communication: SplitCommunication) -> bool:
    """Whether calls that took longer than the fastest one may have moved more tokens instead of waiting: the group was
    not captured as a whole, the sizes of its exchanges were not recorded, and routing is not known to be balanced."""
    is_even = any(step.config.get(key) is True for key in _EVEN_EXCHANGES)
    return ep_communication.wait_ns > 0 and not is_even and bool(step.least_transfer & set(EP_CATEGORIES))


@duration("exposed expert-parallel wait time per step")
def ep_wait_exposed_ns(owned_ep_communication: SplitCommunication) -> int:
    """Time per step in which exposed expert-parallel communication waits for peers to arrive."""
    return owned_ep_communication.wait_ns


@duration("other communication time per step")
def collective_busy_ns(collectives: SplitCommunication) -> int:
    """Time per step in which communication other than expert-parallel runs: data, tensor, pipeline, context
    parallel."""
    return collectives.busy_ns


@duration("other exposed communication time per step", share="other exposed communication")
def collective_exposed_ns(collectives: SplitCommunication) -> int:
    """Time per step in which communication other than expert-parallel runs and no compute kernel does."""
    return collectives.exposed_ns


@duration(
    "other exposed transfer time per step",
)
def collective_transfer_exposed_ns(collectives: SplitCommunication) -> int:
    """Time per step in which communication other than expert-parallel is exposed and does not wait for peers. Transfer
    is separated from waiting as for expert-parallel communication."""
    return collectives.transfer_ns


@duration("other exposed wait time per step")
def collective_wait_exposed_ns(collectives: SplitCommunication) -> int:
    """Time per step in which exposed communication other than expert-parallel waits for peers to arrive."""
    return collectives.wait_ns


@duration(
    "expert-parallel transfer that another micro-batch can cover",
)
def ep_overlappable_ns(step: StepView, ep_transfer_exposed_ns: int) -> int:
    """The part of the exposed expert-parallel transfer that compute of another micro-batch can cover. Without a
    pipeline, of m micro-batches the first forward pass and the last backward pass have no partner, so it is (m-1)/m of
    the transfer. In a pipeline of p stages with v chunks each, the (v-1)p+1 passes of m v that fill the last stage have
    none (v is taken as 2 where the schedule is not interleaved). All of it where m is not known."""
    return round(ep_transfer_exposed_ns * _overlappable_fraction(step.layout))


@duration("compute that can cover data-parallel transfer")
def dp_cover_ns(step: StepView, compute_busy_ns: int) -> int:
    """Compute time per step that data-parallel transfer can overlap with: gradients are complete in the last
    micro-batch's backward pass and parameters are needed in the first one's forward pass, so 1/m of the compute of m
    micro-batches. All of it where m is not known."""
    return compute_busy_ns // (step.layout.microbatches or 1)


@duration("exposed data-parallel transfer time per step", share="exposed data-parallel transfer")
def dp_exposed_ns(step_with_owners: StepView) -> int:
    """Time per step in which parameters and gradients are transferred between data-parallel ranks and no compute kernel
    runs. Collectives of unknown owner do not count."""
    return step_with_owners.transferred_ns(("data_parallel",))


@duration("data-parallel communication time per step", share="data-parallel communication")
def dp_busy_ns(step_with_owners: StepView) -> int:
    """Time per step in which parameters and gradients are transferred between data-parallel ranks, or wait for it."""
    return step_with_owners.union_ns(("data_parallel",))


@duration("hidden data-parallel communication time per step")
def dp_hidden_ns(step_with_owners: StepView, dp_busy_ns: int) -> int:
    """Time per step in which data-parallel communication runs and a compute kernel does too."""
    return dp_busy_ns - step_with_owners.union_ns(("data_parallel",), exposed=True)


CATALOG.quotient(
    __name__,
    "dp_hidden_of_busy_fraction",
    "hidden data-parallel communication",
    "Fraction of data-parallel communication that is hidden behind compute.",
    ("dp_hidden_ns", "dp_busy_ns"),
    whole="all data-parallel communication",
)


@duration("tensor-parallel communication time per step", share="tensor-parallel communication")
def tp_busy_ns(step_with_owners: StepView) -> int:
    """Time per step in which tensor and sequence parallelism transfer data in kernels of NCCL, or wait for it.

    Not the same as: All their transfers: Transformer Engine's overlap copies through buffers of its own.
    """
    return step_with_owners.union_ns(("tensor_parallel",))


@duration("hidden tensor-parallel communication time per step")
def tp_hidden_ns(step_with_owners: StepView, tp_busy_ns: int) -> int:
    """Time per step in which tensor-parallel communication runs and a compute kernel does too."""
    return tp_busy_ns - step_with_owners.union_ns(("tensor_parallel",), exposed=True)


CATALOG.quotient(
    __name__,
    "tp_hidden_of_busy_fraction",
    "hidden tensor-parallel communication",
    "Fraction of tensor-parallel communication that is hidden behind compute.",
    ("tp_hidden_ns", "tp_busy_ns"),
    whole="all tensor-parallel communication",
)


@duration(
    "exposed tensor-parallel transfer time per step",
    share="exposed tensor-parallel transfer",
)
def tp_exposed_ns(step_with_owners: StepView) -> int:
    """Time per step in which tensor and sequence parallelism transfer data and no compute kernel runs."""
    return step_with_owners.transferred_ns(("tensor_parallel",))


@duration(
    "exposed context-parallel ring transfer time",
    share="exposed context-parallel ring transfer",
)
def cp_exposed_ns(step: StepView) -> int:
    """Time per step in which the ring of context parallelism transfers data and no compute kernel runs. Other exchanges
    of context parallelism do not count."""
    return step.transferred_ns(("context_ring",))


@duration("time per step waiting for other ranks", share="waiting for other ranks")
def wait_exposed_ns(step: StepView, ep_communication: SplitCommunication, collectives: SplitCommunication) -> int:
    """Time per step in which exposed communication of any kind waits for peers."""
    # Waiting of both kinds may overlap: together it is no more than the time in which any communication is exposed.
    exposed_ns = step.union_ns(COMMUNICATION_CATEGORIES, exposed=True)
    return min(ep_communication.wait_ns + collectives.wait_ns, exposed_ns)


def _overlappable_fraction(layout: ParallelLayout) -> float:
    """Of a rank's forward passes those that a backward pass can run with when EP overlap is on.

    A pipeline is filled first, on the last stage by the fewest passes (``get_pp_rank_microbatches`` in
    megatron/core/pipeline_parallel/schedules.py, with one more pass for the overlap).
    """
    if layout.microbatches is None or layout.pipeline is None:
        return 1.0
    chunks = max(2, layout.virtual) if layout.pipeline > 1 else 1
    passes = layout.microbatches * chunks
    return max(0, passes - (chunks - 1) * layout.pipeline - 1) / passes
