"""Communication of the representative step: exposed or hidden, transfer or waiting for peers, by its owner.

Exposed is what runs while no compute kernel does. Its transfer is split from waiting in ``step/transfer.py``.
"""

from __future__ import annotations

from three_walls.facts import fact_thresholds
from three_walls.lib.fact import FactGroup, Measurements, Pool
from three_walls.lib.measurement import known, missing
from three_walls.lib.text import in_ms
from three_walls.megatron.parallel_layout import ParallelLayout
from three_walls.step.communication_owners import BY_OPERATION
from three_walls.step.step_view import StepView
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES, COMPUTE_CATEGORIES, EP_CATEGORIES

_OTHER_CATEGORIES = tuple(name for name in COMMUNICATION_CATEGORIES if name not in EP_CATEGORIES)

_EVEN_EXCHANGES = ("moe_router_force_load_balancing", "moe_pad_expert_input_to_capacity")
"""Settings with which all exchanges of tokens have one size."""

_PART_OF_COLLECTIVES = Pool(
    part_of=("collective_transfer_exposed_ns", "collective_exposed_ns", "communication_recoverable_ns"),
    union="collective_busy_ns",
)

facts = FactGroup()

EP_BUSY = facts.duration(
    "ep_busy_ns",
    "expert-parallel communication time per step",
    "Time per step in which expert-parallel communication runs: all-to-all, dispatch, combine, notify.",
)
EP_EXPOSED = facts.duration(
    "ep_exposed_ns",
    "exposed expert-parallel communication time per step",
    "Time per step in which expert-parallel communication runs and no compute kernel does.",
    "Blocking time: exposed communication may delay nobody. Nor transfer time: part of it is waiting for peers.",
    share="exposed expert-parallel communication",
)
EP_HIDDEN = facts.duration(
    "ep_hidden_ns",
    "hidden expert-parallel communication time per step",
    "Time per step in which expert-parallel communication runs and a compute kernel does too.",
)
EP_HIDDEN_OF_BUSY = facts.fraction(
    "ep_hidden_of_busy_fraction",
    "hidden expert-parallel communication",
    "Fraction of expert-parallel communication that is hidden behind compute.",
    EP_HIDDEN,
    EP_BUSY,
    whole="all expert-parallel communication",
)
EP_TRANSFER_EXPOSED = facts.duration(
    "ep_transfer_exposed_ns",
    "exposed expert-parallel transfer time per step",
    "Time per step in which expert-parallel communication is exposed and does not wait for peers. Where all ranks of "
    "the group were captured, a call transfers from its last member's arrival to its end. Elsewhere a call counts at "
    "most what the fastest tenth of the token-carrying calls of its kind took on this rank.",
    "A measured transfer time where one rank alone was captured: that proxy is low when message sizes vary.",
    share="exposed expert-parallel transfer",
    pool=Pool(
        part_of=("ep_exposed_ns", "communication_recoverable_ns"), union="ep_busy_ns", hidden_part="ep_hidden_ns"
    ),
)
EP_TRANSFER_IS_LEAST = facts.flag(
    "ep_transfer_is_lower_bound",
    "whether the expert-parallel transfer is a lower bound",
    "Whether calls that took longer than the fastest one may have moved more tokens instead of waiting: the group was "
    "not captured as a whole, the sizes of its exchanges were not recorded, and routing is not known to be balanced.",
    if_true="The exposed expert-parallel transfer time is a lower bound: the sizes of the exchanges were not recorded",
    if_false="The exposed expert-parallel transfer time is no mere lower bound",
)
EP_WAIT_EXPOSED = facts.duration(
    "ep_wait_exposed_ns",
    "exposed expert-parallel wait time per step",
    "Time per step in which exposed expert-parallel communication waits for peers to arrive.",
    pool=Pool(part_of=("ep_exposed_ns", "wait_exposed_ns")),
)
COLLECTIVE_BUSY = facts.duration(
    "collective_busy_ns",
    "other communication time per step",
    "Time per step in which communication other than expert-parallel runs: data, tensor, pipeline, context parallel.",
)
COLLECTIVE_EXPOSED = facts.duration(
    "collective_exposed_ns",
    "other exposed communication time per step",
    "Time per step in which communication other than expert-parallel runs and no compute kernel does.",
    share="other exposed communication",
)
COLLECTIVE_TRANSFER_EXPOSED = facts.duration(
    "collective_transfer_exposed_ns",
    "other exposed transfer time per step",
    "Time per step in which communication other than expert-parallel is exposed and does not wait for peers. Transfer "
    "is separated from waiting as for expert-parallel communication.",
    pool=Pool(part_of=("collective_exposed_ns", "communication_recoverable_ns"), union="collective_busy_ns"),
)
COLLECTIVE_WAIT_EXPOSED = facts.duration(
    "collective_wait_exposed_ns",
    "other exposed wait time per step",
    "Time per step in which exposed communication other than expert-parallel waits for peers to arrive.",
    pool=Pool(part_of=("collective_exposed_ns", "wait_exposed_ns")),
)
EP_OVERLAPPABLE = facts.duration(
    "ep_overlappable_ns",
    "expert-parallel transfer that another micro-batch can cover",
    "The part of the exposed expert-parallel transfer that compute of another micro-batch can cover. Without a "
    "pipeline, of m micro-batches the first forward pass and the last backward pass have no partner, so it is (m-1)/m "
    "of the transfer. In a pipeline of p stages with v chunks each, the (v-1)p+1 passes of m v that fill the last "
    "stage have none (v is taken as 2 where the schedule is not interleaved). All of it where m is not known.",
    pool=Pool(
        part_of=("ep_transfer_exposed_ns", "ep_exposed_ns", "communication_recoverable_ns"),
        union="ep_busy_ns",
        hidden_part="ep_hidden_ns",
    ),
)
DP_COVER = facts.duration(
    "dp_cover_ns",
    "compute that can cover data-parallel transfer",
    "Compute time per step that data-parallel transfer can overlap with: gradients are complete in the last "
    "micro-batch's backward pass and parameters are needed in the first one's forward pass, so 1/m of the compute of m "
    "micro-batches. All of it where m is not known.",
)
DP_EXPOSED = facts.duration(
    "dp_exposed_ns",
    "exposed data-parallel transfer time per step",
    "Time per step in which parameters and gradients are transferred between data-parallel ranks and no compute kernel "
    "runs. Collectives of unknown owner do not count.",
    share="exposed data-parallel transfer",
    pool=_PART_OF_COLLECTIVES,
)
TP_EXPOSED = facts.duration(
    "tp_exposed_ns",
    "exposed tensor-parallel transfer time per step",
    "Time per step in which tensor and sequence parallelism transfer data and no compute kernel runs.",
    share="exposed tensor-parallel transfer",
    pool=_PART_OF_COLLECTIVES,
)
CP_EXPOSED = facts.duration(
    "cp_exposed_ns",
    "exposed context-parallel ring transfer time",
    "Time per step in which the ring of context parallelism transfers data and no compute kernel runs. Other exchanges "
    "of context parallelism do not count.",
    share="exposed context-parallel ring transfer",
    pool=_PART_OF_COLLECTIVES,
)
WAIT_EXPOSED = facts.duration(
    "wait_exposed_ns",
    "time per step waiting for other ranks",
    "Time per step in which exposed communication of any kind waits for peers.",
    share="waiting for other ranks",
)


def measure_communication(step: StepView) -> Measurements:
    """Every fact of this group."""
    ep_busy_ns, ep_exposed_ns = step.union_ns(EP_CATEGORIES), step.union_ns(EP_CATEGORIES, exposed=True)
    other_exposed_ns = step.union_ns(_OTHER_CATEGORIES, exposed=True)
    ep_transfer_ns, other_transfer_ns = step.transferred_ns(EP_CATEGORIES), step.transferred_ns(_OTHER_CATEGORIES)
    ep_wait_ns, other_wait_ns = ep_exposed_ns - ep_transfer_ns, other_exposed_ns - other_transfer_ns
    # Waiting of both kinds may overlap: together it is no more than the time in which any communication is exposed.
    wait_ns = min(ep_wait_ns + other_wait_ns, step.union_ns(COMMUNICATION_CATEGORIES, exposed=True))
    microbatches = step.layout.microbatches or 1
    is_even = any(step.config.get(key) is True for key in _EVEN_EXCHANGES)
    return {
        EP_BUSY: known(ep_busy_ns),
        EP_EXPOSED: known(ep_exposed_ns),
        EP_HIDDEN: known(ep_busy_ns - ep_exposed_ns),
        EP_TRANSFER_EXPOSED: known(ep_transfer_ns),
        EP_OVERLAPPABLE: known(round(ep_transfer_ns * _overlappable_fraction(step.layout))),
        EP_TRANSFER_IS_LEAST: known(ep_wait_ns > 0 and not is_even and bool(step.least_transfer & set(EP_CATEGORIES))),
        EP_WAIT_EXPOSED: known(ep_wait_ns),
        COLLECTIVE_BUSY: known(step.union_ns(_OTHER_CATEGORIES)),
        COLLECTIVE_EXPOSED: known(other_exposed_ns),
        COLLECTIVE_TRANSFER_EXPOSED: known(other_transfer_ns),
        COLLECTIVE_WAIT_EXPOSED: known(other_wait_ns),
        DP_COVER: known(step.union_ns(COMPUTE_CATEGORIES) // microbatches),
        DP_EXPOSED: known(step.transferred_ns(("data_parallel",))),
        TP_EXPOSED: known(step.transferred_ns(("tensor_parallel",))),
        CP_EXPOSED: known(step.transferred_ns(("context_ring",))),
        WAIT_EXPOSED: known(wait_ns),
    }


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


def withhold_unowned(step: StepView) -> Measurements:
    """Facts that are measured but may not be given: too much communication of the step has no known owner."""
    withheld: Measurements = {}
    ambiguous_ns = step.union_ns(("send_recv_ambiguous",))
    if ambiguous_ns > fact_thresholds.MAXIMUM_AMBIGUOUS_FRACTION * step.step_ns:
        reason = (
            f"SendRecv kernels of {in_ms(ambiguous_ns)} cannot be classified into expert, pipeline and "
            "context exchange: the parallel sizes are not known (capture with -t cuda,nvtx, or profile the launched "
            "command)"
        )
        ep_times = (EP_BUSY, EP_EXPOSED, EP_HIDDEN, EP_TRANSFER_EXPOSED, EP_WAIT_EXPOSED, EP_OVERLAPPABLE)
        withheld = dict.fromkeys(ep_times, missing(reason))
    unowned_ns = sum(step.transfer_ns.get(category, 0) for category in BY_OPERATION)
    if unowned_ns > fact_thresholds.MAXIMUM_OPEN_FRACTION * step.step_ns:
        reason = (
            f"collectives of {in_ms(unowned_ns)} cannot be classified into tensor and data parallelism: "
            "neither the parallel sizes nor NVTX ranges identify their owner (capture with -t cuda,nvtx and Megatron's "
            "--profile, or profile the launched command)"
        )
        withheld = {**withheld, DP_EXPOSED: missing(reason), TP_EXPOSED: missing(reason)}
    return withheld
