"""A run's configuration with overrides applied, as facts that constraints compare.

Facts are ``config.<key>``, ``config.<section>.<field>`` where a field has no key, ``env.<VARIABLE>``, and a few that
are derived here. A setting that is not known is a missing fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from three_walls.model.config import ConfigData, RunConfig
from three_walls.model.fact import Fact, FactSheet
from three_walls.overrides.constraints import Remainder
from three_walls.tables.bridge import release_number
from three_walls.tables.config_keys import config_keys, keys_by_path

COMM_OVERLAP, COMM_OVERLAP_CLASS = "comm_overlap", "CommOverlapConfig"
MIXED_PRECISION, MIXED_PRECISION_CLASS = "mixed_precision", "MixedPrecisionConfig"
_WHOLE_LAYER = (None, "full")
"""Values of the graph settings that name no module."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is known of a configuration: values by name, variables by name, whether the list of variables is whole.

    ``comm_overlap`` and ``mixed_precision`` hold the name of their class where they are objects.
    """

    values: Mapping[str, ConfigData]
    environment: Mapping[str, ConfigData]
    environment_is_known: bool = False
    platform: Mapping[str, ConfigData] | None = None
    """What the settings meet (constraints.yaml: platform), as far as known."""


def name_of(path: str) -> str:
    """The key that a Megatron-Bridge path holds, else the path."""
    key = keys_by_path().get(path)
    if key is not None:
        return key.name
    section, _, field = path.partition(".")
    return field if section == "model" and field in config_keys().keys else path


def settings_of(config: RunConfig, platform: Mapping[str, ConfigData] | None = None) -> Settings:
    """What a trace told of the run."""
    return Settings(
        values={name: found.value for name, found in config.values.items()},
        environment={name: found.value for name, found in config.environment.items()},
        platform=platform,
    )


def facts_of_settings(settings: Settings, version: str, remainders: Mapping[str, Remainder]) -> FactSheet:
    """``settings`` as facts, with the derived ones that they suffice for."""
    values = dict(settings.values)
    values |= {f"platform.{name}": value for name, value in (settings.platform or {}).items()}
    values |= _graph_facts(values, version)
    values |= _remainders(values, remainders)
    if "seq_length" in values and "dataset.seq_length" in values:
        values["derived.sequence_lengths_agree"] = values["seq_length"] == values["dataset.seq_length"]
    facts = [Fact(f"config.{name}", value, "config") for name, value in sorted(values.items())]
    facts += [Fact(f"env.{name}", value, "config") for name, value in sorted(settings.environment.items())]
    return FactSheet.of(facts, settings.environment_is_known)


def _graph_facts(values: Mapping[str, ConfigData], version: str) -> dict[str, ConfigData]:
    """Which modules are captured: one list in older releases, two that exclude each other from 0.5 on."""
    scope_known, modules_known = "cuda_graph_scope" in values, "cuda_graph_modules" in values
    scope, modules = _names(values.get("cuda_graph_scope")), _names(values.get("cuda_graph_modules"))
    found: dict[str, ConfigData] = {}
    if modules_known:
        found["derived.names_graph_modules"] = bool(modules)
    if release_number(version) < (0, 5):
        graphed = scope if scope_known else None
    else:
        graphed = scope or modules if scope or modules or (scope_known and modules_known) else None
    if graphed is not None:
        found["derived.graphed_modules"] = graphed
    implementation = values.get("cuda_graph_impl")
    if implementation == "local" and graphed is not None:
        found["derived.full_iteration_graph"] = "full_iteration" in graphed
    elif "cuda_graph_impl" in values and implementation != "local":
        found["derived.full_iteration_graph"] = implementation == "full_iteration"
    return found


def _names(value: ConfigData) -> tuple[str, ...]:
    if value in _WHOLE_LAYER:
        return ()
    return tuple(str(one) for one in value) if isinstance(value, tuple) else tuple(str(value).split(","))


def _remainders(values: Mapping[str, ConfigData], remainders: Mapping[str, Remainder]) -> dict[str, ConfigData]:
    found: dict[str, ConfigData] = {}
    for name, one in remainders.items():
        if all(part in values for part in (*one.of, *one.by)):
            of = [value for part in one.of if isinstance(value := values[part], int)]
            by = [1 if values[part] is None else values[part] for part in one.by]
            divisors = [value for value in by if isinstance(value, int) and value > 0]
            if len(of) == len(one.of) and len(divisors) == len(by):
                found[f"remainder.{name}"] = prod(of) % (prod(divisors) * one.factor)
    return found
