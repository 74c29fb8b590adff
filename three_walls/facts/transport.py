"""Whether communication runs over the path that it should: achieved bandwidth against the link, and NCCL's variables.

Which path NCCL takes between two GPUs holds for all collectives of a process. So the fastest exchange of any kind shows
what the path carries: waiting, small messages and late peers only make the others slower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal

import polars as pl

from three_walls.facts.fact_rows import MINIMUM_LINK_FRACTION
from three_walls.facts.run_layout import is_in_domain
from three_walls.lib.declare import artifact, fact, flag
from three_walls.lib.load_documents import Text, load_table
from three_walls.lib.measurement import NS_PER_S, Measurement, known, missing
from three_walls.lib.resources import TABLES_DIR
from three_walls.step.operators import Operators
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_tables import Arrivals
from three_walls.step.step_view import StepView
from three_walls.tables.hardware import GpuModel

NONE, UNKNOWN = "none", "unknown"
_OF_VENDORS_SERVERS = "ConnectX"

_ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
_REDUCE_SCATTER = re.compile(r"ReduceScatter_Sum_(f32|bf16|f16)_")
_REDUCE_RANGE = re.compile(r"^nccl:_?reduce_scatter")
_REDUCE_OPERATOR = re.compile(r"^c10d::_?reduce_scatter")

Path = Literal["nvlink", "network"]


@dataclass(frozen=True, slots=True)
class DisablingVariable:
    """With one of ``values`` (case does not count) NCCL does not use ``path``."""

    variable: Text
    path: Path
    values: tuple[Text, ...]
    reason: Text
    source: Text
    other_adapters: tuple[Text, ...] = ()
    """Adapters that NCCL reaches without what the variable turns off."""


@dataclass(frozen=True, slots=True)
class ForcingVariable:
    """Replaces NCCL's own choice, whatever its value."""

    variable: Text
    reason: Text


@dataclass(frozen=True, slots=True)
class NamingVariable:
    """Shows which ``adapters`` the hosts have, by any value or one that ``pattern`` matches whole."""

    adapters: Text
    variable: Text
    pattern: Text = ".*"


@dataclass(frozen=True, slots=True)
class NcclTransport:
    """``tables/nccl-transport.yaml``: variables that take a path away, force NCCL's choice or name the adapters."""

    disabling: tuple[DisablingVariable, ...]
    forcing: tuple[ForcingVariable, ...]
    naming: tuple[NamingVariable, ...]


@cache
def nccl_transport() -> NcclTransport:
    """The table that ships with the program."""
    return load_table(TABLES_DIR / "nccl-transport.yaml", NcclTransport)


@dataclass(frozen=True, slots=True)
class NcclVariables:
    """Environment variables that change what NCCL does."""

    texts: Mapping[str, str]
    """All variables with their values."""
    disabling: Sequence[DisablingVariable]
    """Those that keep it from a path."""
    forcing: Sequence[str]
    """Names of those that replace its own choice."""
    adapters: str | None
    """The network adapters that they show."""


@artifact
def nccl_variables(step: StepView) -> NcclVariables | None:
    """What the environment changes of NCCL; None where it was not recorded."""
    config, table = step.config, nccl_transport()
    if not config.environment_is_known:
        return None
    texts = {name: str(variable.value) for name, variable in config.environment.items()}
    shown = (
        row.adapters
        for row in table.naming
        if (value := texts.get(row.variable)) and re.fullmatch(row.pattern, value, re.IGNORECASE)
    )
    adapters = next(shown, None)
    disabling = [
        row
        for row in table.disabling
        if texts.get(row.variable, "").lower() in {value.lower() for value in row.values}
        and adapters not in row.other_adapters
    ]
    forcing = [row.variable for row in table.forcing if texts.get(row.variable)]
    return NcclVariables(texts, disabling, forcing, adapters)


@artifact
def gpu_lists(step: StepView) -> tuple[tuple[str, ...], ...]:
    """CUDA_VISIBLE_DEVICES of the ranks of each host with several ranks. A process takes the entry of its local rank,
    or the only one."""
    run = step.run
    lists_of_host: dict[str | None, list[str]] = {}
    for rank, gpus in sorted(zip(run.ranks, run.visible_gpus, strict=False), key=lambda row: row[0].rank):
        if gpus is not None:
            lists_of_host.setdefault(rank.host, []).append(gpus)
    ranks_per_node = run.layout.ranks_per_node or 1
    return tuple(tuple(lists) for lists in lists_of_host.values() if max(len(lists), ranks_per_node) > 1)


@fact("bytes_per_s", "fastest gradient reduction bandwidth")
def dp_fastest_bytes_per_s(
    step: StepView, operators: Operators, matched_ranks: MatchedRanks, memory_gradients_bytes: Measurement[int]
) -> Measurement[float]:
    """Bytes that a rank sends in a data-parallel reduce-scatter (recorded shapes x (ranks - 1) / ranks) over its
    duration, in the fastest one of the step. Waiting is left out where all ranks of the group were captured. Without
    shapes, the gradients of a model that every rank holds whole, over all of the step's reduce-scatters."""
    recorded = _fastest_reduction(step, "data_parallel", operators, matched_ranks.arrivals)
    layout, gradients_bytes = step.layout, memory_gradients_bytes.value
    ranks = layout.world or 1
    if recorded.value is not None or gradients_bytes is None or ranks == 1:
        return recorded
    if not layout.data == layout.expert_data == ranks:
        return recorded
    transfer_ns = sum(duration for *_, duration in _reductions(step, "data_parallel", matched_ranks.arrivals))
    return known(gradients_bytes * (ranks - 1) / ranks * NS_PER_S / transfer_ns) if transfer_ns else recorded


@fact("bytes_per_s", "fastest tensor-parallel reduction bandwidth")
def tp_fastest_bytes_per_s(step: StepView, operators: Operators, matched_ranks: MatchedRanks) -> Measurement[float]:
    """Bytes that a rank sends in a tensor-parallel reduce-scatter (recorded shapes x (ranks - 1) / ranks) over its
    duration, in the fastest one of the step. Waiting is left out where all ranks of the group were captured."""
    return _fastest_reduction(step, "tensor_parallel", operators, matched_ranks.arrivals)


@fact("fraction", "NVLink bandwidth reached", whole="NVLink's bandwidth in one direction")
def nvlink_achieved_fraction(
    step: StepView,
    ep_fastest_bytes_per_s: Measurement[float],
    dp_fastest_bytes_per_s: Measurement[float],
    tp_fastest_bytes_per_s: Measurement[float],
) -> Measurement[float]:
    """Fraction of NVLink's bandwidth in one direction that the fastest communication within one NVLink domain reaches:
    token exchange, gradient or tensor-parallel reduction.

    Not the same as: NVLink utilization: one call is enough to show that the path is used.
    """
    run, layout = step.run, step.layout
    rates = (
        (ep_fastest_bytes_per_s.value, layout.expert_group),
        (dp_fastest_bytes_per_s.value, layout.world),
        (tp_fastest_bytes_per_s.value, layout.tensor),
    )
    on_nvlink = [rate for rate, group in rates if rate is not None and is_in_domain(run, group)]
    nvlink = run.gpu.nvlink_bytes_per_s_one_way if run.gpu else None
    if on_nvlink and nvlink:
        return known(max(on_nvlink) / nvlink)
    return missing(
        "no communication within one NVLink domain whose bytes are known (from the config, or shapes recorded with the "
        "operators), or the GPU's NVLink bandwidth is not known"
    )


@fact("text", "the transport that NCCL's variables disable")
def nccl_disabled_transport(nccl_variables: NcclVariables | None) -> str:
    """The environment variables with which NCCL does not use NVLink or the network adapters
    (tables/nccl-transport.yaml); 'none', or 'unknown' where the environment was not recorded."""
    if nccl_variables is None:
        return UNKNOWN
    texts = nccl_variables.texts
    return ", ".join(f"{row.variable}={texts[row.variable]}" for row in nccl_variables.disabling) or NONE


@fact("text", "NCCL settings forced by variables")
def nccl_forced_settings(nccl_variables: NcclVariables | None) -> str:
    """The environment variables that replace NCCL's own choice of algorithm, protocol or channels; 'none', or 'unknown'
    where the environment was not recorded."""
    if nccl_variables is None:
        return UNKNOWN
    return ", ".join(f"{name}={nccl_variables.texts[name]}" for name in nccl_variables.forcing) or NONE


@fact("text", "the kind of network adapter")
def network_adapters(nccl_variables: NcclVariables | None) -> str:
    """What connects the hosts, by the first variable that shows it (tables/nccl-transport.yaml); 'none' where no
    variable does, or 'unknown' where the environment was not recorded."""
    return UNKNOWN if nccl_variables is None else nccl_variables.adapters or NONE


def adapter_bytes_per_s(gpu: GpuModel, network_adapters: str) -> Measurement[float]:
    """What the network adapter of a GPU carries in one direction in the vendor's own server, unless variables show that
    the hosts have other adapters."""
    if network_adapters not in (_OF_VENDORS_SERVERS, NONE, UNKNOWN):
        return missing(f"what {network_adapters} adapters carry is not in tables/hardware.yaml")
    if gpu.nic_bytes_per_s_one_way is None:
        return missing(f"the network of a {gpu.family} server is not in tables/hardware.yaml")
    return known(float(gpu.nic_bytes_per_s_one_way))


@flag(
    "whether NCCL's fast transport is disabled",
    if_true="An environment variable disables NCCL's fast transport",
    if_false="No environment variable is known to disable NCCL's fast transport",
)
def nccl_transport_disabled(
    step: StepView,
    nccl_variables: NcclVariables | None,
    nvlink_achieved_fraction: Measurement[float],
    ep_fastest_bytes_per_s: Measurement[float],
    ep_link_bytes_per_s: Measurement[float],
) -> bool:
    """Whether an environment variable disables a transport of NCCL that the layout uses, and no communication is known
    to reach a quarter of its bandwidth."""
    network_fraction = None
    ep_rate, ep_link = ep_fastest_bytes_per_s.value, ep_link_bytes_per_s.value
    if is_in_domain(step.run, step.layout.expert_group) is False and ep_rate is not None and ep_link is not None:
        network_fraction = ep_rate / ep_link
    reached = {"nvlink": nvlink_achieved_fraction.value, "network": network_fraction}
    is_used = {"nvlink": step.layout.ranks_per_node != 1, "network": step.layout.nodes != 1}
    limit = MINIMUM_LINK_FRACTION
    return any(
        is_used[row.path] and ((fraction := reached[row.path]) is None or fraction < limit)
        for row in (nccl_variables.disabling if nccl_variables else ())
    )


@fact("text", "the GPUs that a host's ranks may use")
def visible_gpus(gpu_lists: tuple[tuple[str, ...], ...]) -> Measurement[str]:
    """CUDA_VISIBLE_DEVICES of the captured ranks of a host with several ranks, each list once, in the order of
    ranks."""
    if not gpu_lists:
        return missing("no trace of a host with several ranks records CUDA_VISIBLE_DEVICES")
    return known("; ".join(dict.fromkeys(gpus for lists in gpu_lists for gpus in lists)))


@flag(
    "whether a host's GPUs are reordered",
    if_true="CUDA_VISIBLE_DEVICES reorders the GPUs of a host",
    if_false="CUDA_VISIBLE_DEVICES is not known to reorder the GPUs of a host",
)
def gpus_reordered(gpu_lists: tuple[tuple[str, ...], ...]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES gives consecutive ranks of a host GPUs whose numbers do not ascend, or gives two of
    its ranks different lists of several GPUs. Numbers do not show which GPUs NVLink joins."""
    return any(_is_reordered(lists) for lists in gpu_lists)


def _is_reordered(lists: Sequence[str]) -> bool:
    """Whether ranks with these lists, in the order of ranks, take GPUs whose numbers do not ascend."""
    entries = [gpus.split(",") for gpus in lists]
    if any(len(gpus) > 1 for gpus in entries):
        visible = entries[0]
        if any(gpus != visible for gpus in entries):
            return True
    else:  # one GPU per process: containers may number each of them 0
        visible = [gpus[0] for gpus in entries]
    numbers = [int(gpu) for gpu in visible if gpu.strip().isdigit()]
    return len(numbers) == len(visible) and numbers != sorted(numbers)


def _reductions(step: StepView, category: str, arrivals: Arrivals) -> Iterator[tuple[int, int | None, int | None, int]]:
    """Bytes of an element, launching thread, launch and transfer time in ns of each reduce-scatter of ``category``."""
    kernels = step.kernels.filter(pl.col("category").cast(pl.String) == category)
    resolved = arrivals.filter((pl.col("rank_index") == step.rank_index) & pl.col("resolved"))
    transfers = {
        (start_ns, end_ns): transfer_ns
        for start_ns, end_ns, transfer_ns in resolved.select("start_ns", "end_ns", "transfer_ns").rows()
    }
    columns = ("name_id", "launch_thread", "launch_start_ns", "start_ns", "end_ns")
    for name_id, thread, launch_ns, start_ns, end_ns in kernels.select(columns).rows():
        if kind := _REDUCE_SCATTER.search(step.names.get(name_id, "")):
            yield _ELEMENT_BYTES[kind[1]], thread, launch_ns, transfers.get((start_ns, end_ns), end_ns - start_ns)


def _fastest_reduction(step: StepView, category: str, operators: Operators, arrivals: Arrivals) -> Measurement[float]:
    """Bytes per second of the fastest reduce-scatter of ``category``."""
    rates = []
    for element_bytes, thread, launch_ns, transfer_ns in _reductions(step, category, arrivals):
        if thread is None or launch_ns is None:
            continue
        group = step.layout.tensor if category == "tensor_parallel" else None
        sent = _sent_elements(operators, operators.innermost(thread, launch_ns), group) * element_bytes
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
            output, whole = (prod(size) if size else 0 for size in operator.sizes[:2])
            return whole - output if 0 < output < whole else 0
        if _REDUCE_RANGE.search(operator.name) and operator.sizes and group and group > 1:
            return prod(operator.sizes[0]) * (group - 1) / group if operator.sizes[0] else 0
    return 0
