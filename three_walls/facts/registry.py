"""Every fact of the product, in the order in which reports list them.

A fact is declared next to the code that measures it, with the FactGroup of its module, and measured by returning
``{DEFINITION: known(value)}`` or ``{DEFINITION: missing(reason)}``. A new module is listed here and called in
``facts/measure.py``. Settings of the run are facts too, named ``config.<key>`` and ``env.<VARIABLE>``: they need no
definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from three_walls.facts import (
    communication_facts,
    cuda_graphs,
    gemm_efficiency,
    gemm_shapes,
    half_tensor_parallel,
    host_copies,
    log_facts,
    low_precision,
    memory_estimate,
    model_flops,
    moe_ledger,
    overlap_slowdown,
    pipeline_schedule,
    program_facts,
    rank_facts,
    recompute_facts,
    recorded_memory,
    recoverable,
    replayed_step,
    run_layout,
    step_facts,
    token_balance,
    token_exchange,
    transport,
    unfused_ops,
)
from three_walls.lib.fact import FactDefinition, FactGroup

GROUPS: tuple[FactGroup, ...] = (
    step_facts.facts,
    communication_facts.facts,
    recoverable.facts,
    overlap_slowdown.facts,
    pipeline_schedule.facts,
    moe_ledger.facts,
    token_balance.facts,
    token_exchange.facts,
    transport.facts,
    recompute_facts.facts,
    cuda_graphs.facts,
    unfused_ops.facts,
    model_flops.facts,
    gemm_efficiency.facts,
    low_precision.facts,
    gemm_shapes.facts,
    host_copies.facts,
    memory_estimate.facts,
    half_tensor_parallel.facts,
    recorded_memory.facts,
    log_facts.facts,
    replayed_step.facts,
    rank_facts.facts,
    program_facts.facts,
    run_layout.facts,
)


def index_definitions(groups: Iterable[FactGroup]) -> Mapping[str, FactDefinition]:
    """Definitions by name, in order of the groups. Raises ValueError for a name that is defined twice."""
    by_name: dict[str, FactDefinition] = {}
    for group in groups:
        for definition in group.definitions:
            if definition.name in by_name:
                raise ValueError(f"fact {definition.name} is defined twice")
            by_name[definition.name] = definition
    return MappingProxyType(by_name)


DEFINITION_BY_NAME = index_definitions(GROUPS)
DEFINITIONS = tuple(DEFINITION_BY_NAME.values())
