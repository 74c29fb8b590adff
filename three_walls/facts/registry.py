"""Every fact of the product, in the order in which reports list them.

A fact is declared beside the code that measures it, with the FactGroup of its module. A new module is listed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from three_walls.facts import cuda_graphs, layout, token_exchange, unfused_ops
from three_walls.facts.efficiency import gemm_shapes, model_flops, roles
from three_walls.facts.moe import ledger
from three_walls.facts.recompute import replays
from three_walls.model.fact import FactDefinition, FactGroup, FactValue, Measurements

GROUPS: tuple[FactGroup, ...] = (
    replays.facts,
    cuda_graphs.facts,
    ledger.facts,
    token_exchange.facts,
    model_flops.facts,
    roles.facts,
    gemm_shapes.facts,
    unfused_ops.facts,
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


def by_name(measurements: Measurements) -> dict[str, tuple[FactValue, str | None]]:
    """``measurements`` as pairs by name, for what still collects pairs."""
    return {definition.name: (one.value, one.missing_reason) for definition, one in measurements.items()}
