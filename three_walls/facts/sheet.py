"""The fact sheet: every fact of a run in the order in which reports list them, and the settings of the run.

Settings of the run are facts too, named ``config.<key>`` and ``env.<VARIABLE>``: they need no definition.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages

from three_walls import facts
from three_walls.lib.declare import CATALOG, Artifacts
from three_walls.lib.fact import Fact, FactDefinition, FactSheet
from three_walls.megatron.settings.run_config import NOT_SHOWN, RunConfig

_ORDER = (
    "step_facts",
    "host_synchronization",
    "communication_facts",
    "recoverable",
    "overlap_slowdown",
    "pipeline_schedule",
    "moe_ledger",
    "token_balance",
    "token_exchange",
    "transport",
    "recompute_facts",
    "cuda_graphs",
    "unfused_ops",
    "model_flops",
    "gemm_efficiency",
    "low_precision",
    "gemm_shapes",
    "host_copies",
    "hardware_metrics",
    "memory_estimate",
    "other_layouts",
    "recorded_memory",
    "log_facts",
    "replayed_step",
    "rank_facts",
    "program_facts",
    "run_layout",
    "weight_updates",
    "configured",
)
"""The subjects in the order of reports. Facts of other modules come after them, by the module's name."""


for _module in walk_packages(facts.__path__, "three_walls.facts."):
    import_module(_module.name)


def _place(module: str) -> tuple[int, str]:
    subject = module.removeprefix("three_walls.facts.")
    return _ORDER.index(subject) if subject in _ORDER else len(_ORDER), subject


DEFINITIONS: tuple[FactDefinition, ...] = tuple(
    declared.definition
    for declared in sorted(CATALOG.declared.values(), key=lambda declared: _place(declared.module))
    if declared.definition is not None
)
"""Every fact of the product, in the order in which reports list them."""

DEFINITION_BY_NAME = {definition.name: definition for definition in DEFINITIONS}


def make_sheet(measured: Artifacts, config: RunConfig) -> FactSheet:
    """Every defined fact, missing with its reason where it cannot be measured, then ``config.*`` and ``env.*``."""
    all_facts = [_find(definition, measured) for definition in DEFINITIONS]
    settings = (
        ("config", config.values, config.withheld_values),
        ("env", config.environment, config.withheld_environment),
    )
    for kind, values, _ in settings:
        all_facts += [Fact(f"{kind}.{key}", setting.value, "config") for key, setting in sorted(values.items())]
    for kind, _, redacted in settings:
        all_facts += [Fact(f"{kind}.{key}", None, "config", missing_reason=NOT_SHOWN) for key in sorted(redacted)]
    sheet = FactSheet.of(all_facts, config.environment_is_known)
    excess_ns = measured.named("excess_ns")
    if not excess_ns.value:
        return sheet
    as_traced = measured.with_inputs({"excess_ns": None})
    changed = CATALOG.following(["excess_ns"])
    traced = {each.name: _find(each, as_traced).value for each in DEFINITIONS if each.name in changed}
    return replace(
        sheet, before_log={name: value for name, value in traced.items() if value != sheet.facts[name].value}
    )


def _find(definition: FactDefinition, measured: Artifacts) -> Fact:
    measurement = measured.named(definition.name)
    return Fact(definition.name, measurement.value, definition.unit, measurement.missing_reason, definition)
