"""Whether communication runs over the path that it should: achieved bandwidth against the link, and NCCL's variables.

Which path NCCL takes between two GPUs holds for all collectives of a process. So the fastest exchange of any kind shows
what the path carries: waiting, small messages and late peers only make the others slower.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from three_walls.facts.nccl_transport import MINIMUM_LINK_FRACTION, nccl_transport
from three_walls.facts.run_layout import LARGEST_SERVER_GPUS
from three_walls.facts.token_exchange import EP_FASTEST, EP_LINK
from three_walls.lib.fact import FactGroup, Measurements
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.lib.units import NS_PER_S
from three_walls.step.operators import Operators
from three_walls.step.step_view import RunView, StepView

NONE, UNKNOWN = "none", "unknown"

facts = FactGroup()

DP_FASTEST = facts.fact(
    "dp_fastest_bytes_per_s",
    "bytes_per_s",
    "fastest gradient reduction bandwidth",
    "Bytes that a rank sends in a data-parallel reduce-scatter (recorded shapes x (ranks - 1) / ranks) over its "
    "duration, in the fastest one of the step. Waiting is left out where all ranks of the group were captured.",
)
TP_FASTEST = facts.fact(
    "tp_fastest_bytes_per_s",
    "bytes_per_s",
    "fastest tensor-parallel reduction bandwidth",
    "Bytes that a rank sends in a tensor-parallel reduce-scatter (recorded shapes x (ranks - 1) / ranks) over its "
    "duration, in the fastest one of the step. Waiting is left out where all ranks of the group were captured.",
)
NVLINK_ACHIEVED = facts.fact(
    "nvlink_achieved_fraction",
    "fraction",
    "NVLink bandwidth reached",
    "Fraction of NVLink's bandwidth in one direction that the fastest communication within one NVLink domain reaches: "
    "token exchange, gradient or tensor-parallel reduction.",
    "NVLink utilization: one call is enough to show that the path is used.",
    whole="NVLink's bandwidth in one direction",
)
TRANSPORT_CAUSE = facts.fact(
    "nccl_disabled_transport",
    "text",
    "the transport that NCCL's variables disable",
    "The environment variables with which NCCL does not use NVLink or the network adapters "
    "(tables/nccl-transport.yaml); 'none', or 'unknown' where the environment was not recorded.",
)
FORCED_SETTINGS = facts.fact(
    "nccl_forced_settings",
    "text",
    "NCCL settings forced by variables",
    "The environment variables that replace NCCL's own choice of algorithm, protocol or channels; 'none', or 'unknown' "
    "where the environment was not recorded.",
)
TRANSPORT_DISABLED = facts.flag(
    "nccl_transport_disabled",
    "whether NCCL's fast transport is disabled",
    "Whether an environment variable disables a transport of NCCL that the layout uses, and no communication is known "
    "to reach a quarter of its bandwidth.",
    if_true="An environment variable disables NCCL's fast transport",
    if_false="No environment variable is known to disable NCCL's fast transport",
)

VISIBLE_GPUS = facts.fact(
    "visible_gpus",
    "text",
    "the GPUs that a host's ranks may use",
    "CUDA_VISIBLE_DEVICES of the captured ranks of a host with several ranks, each list once, in the order of ranks.",
)
GPUS_REORDERED = facts.flag(
    "gpus_reordered",
    "whether a host's GPUs are reordered",
    "Whether CUDA_VISIBLE_DEVICES gives consecutive ranks of a host GPUs whose numbers do not ascend, or gives two of "
    "its ranks different lists of several GPUs. Numbers do not show which GPUs NVLink joins.",
    if_true="CUDA_VISIBLE_DEVICES reorders the GPUs of a host",
    if_false="CUDA_VISIBLE_DEVICES is not known to reorder the GPUs of a host",
)

_ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
_REDUCE_SCATTER = re.compile(r"ReduceScatter_Sum_(f32|bf16|f16)_")
_REDUCE_RANGE = re.compile(r"^nccl:_?reduce_scatter")
_REDUCE_OPERATOR = re.compile(r"^c10d::_?reduce_scatter")


def measure_transport(
    step: StepView, operators: Operators, arrivals: pl.DataFrame, measured: Measurements
) -> Measurements:
    """Every fact of this group.

    ``arrivals``: matched_ranks.measure_arrivals. ``measured``: with EP_FASTEST and EP_LINK.
    """
    run = step.run
    fastest = {
        DP_FASTEST: _fastest_reduction(step, "data_parallel", operators, arrivals),
        TP_FASTEST: _fastest_reduction(step, "tensor_parallel", operators, arrivals),
    }
    nvlink = run.gpu.nvlink_bytes_per_s_one_way if run.gpu else None
    within = {
        EP_FASTEST: _is_in_domain(run, run.layout.expert_group),
        DP_FASTEST: _is_in_domain(run, run.layout.world),
        TP_FASTEST: _is_in_domain(run, run.layout.tensor),
    }
    rates = {**fastest, EP_FASTEST: measured[EP_FASTEST]}
    on_nvlink = [rate.value for fact, rate in rates.items() if within[fact] and isinstance(rate.value, float)]
    nvlink_fraction = max(on_nvlink) / nvlink if on_nvlink and nvlink else None
    ep_rate, ep_link = measured[EP_FASTEST].value, measured[EP_LINK].value
    network_fraction = None
    if within[EP_FASTEST] is False and isinstance(ep_rate, float) and isinstance(ep_link, float):
        network_fraction = ep_rate / ep_link
    fractions = {"nvlink": nvlink_fraction, "network": network_fraction}
    return {
        **fastest,
        NVLINK_ACHIEVED: known(nvlink_fraction)
        if nvlink_fraction is not None
        else missing(
            "no communication within one NVLink domain whose bytes are known (from the config, or shapes recorded with "
            "the operators), or the GPU's NVLink bandwidth is not known"
        ),
        **_measure_variables(run, fractions),
        **_measure_gpu_order(run),
    }


def _measure_gpu_order(run: RunView) -> Measurements:
    """Which GPUs the ranks of a host take. A process takes the entry of its local rank, or the only one."""
    lists_of_host: dict[str | None, list[str]] = {}
    for rank, gpus in sorted(zip(run.ranks, run.visible_gpus, strict=False), key=lambda row: row[0].rank):
        if gpus is not None:
            lists_of_host.setdefault(rank.host, []).append(gpus)
    shared = [lists for lists in lists_of_host.values() if max(len(lists), run.layout.ranks_per_node or 1) > 1]
    if not shared:
        reason = "no trace of a host with several ranks records CUDA_VISIBLE_DEVICES"
        return {VISIBLE_GPUS: missing(reason), GPUS_REORDERED: known(False)}
    texts = dict.fromkeys(gpus for lists in shared for gpus in lists)
    return {
        VISIBLE_GPUS: known("; ".join(texts)),
        GPUS_REORDERED: known(any(_is_reordered(lists) for lists in shared)),
    }


def _is_reordered(lists: Sequence[str]) -> bool:
    """Whether ranks with these lists, in the order of ranks, take GPUs whose numbers do not ascend."""
    entries = [gpus.split(",") for gpus in lists]
    if any(len(gpus) > 1 for gpus in entries):
        taken = entries[0]
        if any(gpus != taken for gpus in entries):
            return True
    else:  # one GPU per process: containers may number each of them 0
        taken = [gpus[0] for gpus in entries]
    numbers = [int(gpu) for gpu in taken if gpu.strip().isdigit()]
    return len(numbers) == len(taken) and numbers != sorted(numbers)


def _measure_variables(run: RunView, fractions: dict[str, float | None]) -> Measurements:
    """``fractions``: what is reached of the bandwidth of each path; None where it is not known."""
    config = run.config
    if not config.environment_is_known:
        return {TRANSPORT_CAUSE: known(UNKNOWN), FORCED_SETTINGS: known(UNKNOWN), TRANSPORT_DISABLED: known(False)}
    table = nccl_transport()
    texts = {name: str(found.value) for name, found in config.environment.items()}
    disabling = [
        row for row in table.disabling if texts.get(row.variable, "").lower() in {value.lower() for value in row.values}
    ]
    forcing = [row.variable for row in table.forcing if texts.get(row.variable)]
    limit = MINIMUM_LINK_FRACTION
    is_used = {"nvlink": run.layout.ranks_per_node != 1, "network": run.layout.nodes != 1}
    slow = [
        row for row in disabling if is_used[row.path] and ((reached := fractions[row.path]) is None or reached < limit)
    ]
    return {
        TRANSPORT_CAUSE: known(", ".join(f"{row.variable}={texts[row.variable]}" for row in disabling) or NONE),
        FORCED_SETTINGS: known(", ".join(f"{name}={texts[name]}" for name in forcing) or NONE),
        TRANSPORT_DISABLED: known(bool(slow)),
    }


def _is_in_domain(run: RunView, group: int | None) -> bool | None:
    """Whether ``group`` consecutive ranks are in one NVLink domain; None where that is not known."""
    domain, per_node = run.gpu.nvlink_domain_gpus if run.gpu else None, run.layout.ranks_per_node
    if domain is None or group is None:
        return None
    is_server = domain <= LARGEST_SERVER_GPUS
    return group <= (min(domain, per_node) if is_server and per_node else domain)


def _fastest_reduction(
    step: StepView, category: str, operators: Operators, arrivals: pl.DataFrame
) -> Measurement[float]:
    """Bytes per second of the fastest reduce-scatter of ``category``."""
    kernels = step.kernels.filter(pl.col("category").cast(pl.String) == category)
    resolved = arrivals.filter((pl.col("rank_index") == step.rank_index) & pl.col("resolved"))
    transfers = {
        (start_ns, end_ns): transfer_ns
        for start_ns, end_ns, transfer_ns in resolved.select("start_ns", "end_ns", "transfer_ns").rows()
    }
    rates = []
    columns = ("name_id", "launch_thread", "launch_start_ns", "start_ns", "end_ns")
    for name_id, thread, launch_ns, start_ns, end_ns in kernels.select(columns).rows():
        kind = _REDUCE_SCATTER.search(step.names.get(name_id, ""))
        if kind is None or thread is None or launch_ns is None:
            continue
        group = step.layout.tensor if category == "tensor_parallel" else None
        sent = _sent_elements(operators, operators.innermost(thread, launch_ns), group) * _ELEMENT_BYTES[kind[1]]
        transfer_ns = transfers.get((start_ns, end_ns), end_ns - start_ns)
        if sent and transfer_ns > 0:
            rates.append(sent * NS_PER_S / transfer_ns)
    if not rates:
        return missing("no reduce-scatter whose shapes were recorded (profile with record_shapes)")
    return known(max(rates))


def _sent_elements(operators: Operators, index: int | None, group: int | None) -> float:
    """Elements that a rank sends in the reduce-scatter launched inside the range ``index``; 0 where not known.

    c10d's operator has the output and the input: of the input a rank sends all but its own part. Where the caller used
    the process group directly, only the input was recorded, and ``group`` gives the number of ranks.
    """
    for around in operators.around(index):
        operator = operators.found[around]
        if _REDUCE_OPERATOR.search(operator.name) and operator.sizes and len(operator.sizes) > 1:
            output, whole = (_count_elements(size) for size in operator.sizes[:2])
            return whole - output if 0 < output < whole else 0
        if _REDUCE_RANGE.search(operator.name) and operator.sizes and group and group > 1:
            return _count_elements(operator.sizes[0]) * (group - 1) / group
    return 0


def _count_elements(size: tuple[int, ...]) -> int:
    count = 1
    for length in size:
        count *= length
    return count if size else 0
