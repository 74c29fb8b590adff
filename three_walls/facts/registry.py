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
    communication,
    cuda_graphs,
    half_tensor_parallel,
    host_copies,
    layout,
    log_facts,
    overlap_slowdown,
    pipeline_schedule,
    program,
    ranks,
    recompute,
    recoverable,
    replayed_step,
    step,
    transport,
    unfused_ops,
)
from three_walls.facts.efficiency import gemm_shapes, low_precision, model_flops, roles
from three_walls.facts.memory import estimate, recorded
from three_walls.facts.moe import ledger, token_balance, token_exchange
from three_walls.model.fact import FactDefinition, FactGroup

GROUPS: tuple[FactGroup, ...] = (
    step.facts,
    communication.facts,
    recoverable.facts,
    overlap_slowdown.facts,
    pipeline_schedule.facts,
    ledger.facts,
    token_balance.facts,
    token_exchange.facts,
    transport.facts,
    recompute.facts,
    cuda_graphs.facts,
    unfused_ops.facts,
    model_flops.facts,
    roles.facts,
    low_precision.facts,
    gemm_shapes.facts,
    host_copies.facts,
    estimate.facts,
    half_tensor_parallel.facts,
    recorded.facts,
    log_facts.facts,
    replayed_step.facts,
    ranks.facts,
    program.facts,
    layout.facts,
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
