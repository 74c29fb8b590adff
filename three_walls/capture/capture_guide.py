"""How to capture a run, and what each part of a capture is for: ``tables/capture.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from three_walls.lib.load_documents import (
    ByName,
    NamedRow,
    Pattern,
    Text,
    Texts,
    Value,
    between,
    load_table,
    one_of,
    raise_contradictions,
)
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.config_keys import config_keys, contradictions_of_settings

BRIDGE, MEGATRON_LM = "bridge", "megatron-lm"
FRAMEWORKS = (BRIDGE, MEGATRON_LM)
GPU_METRICS, ATTACH = "gpu_metrics", "attach"
"""Uses of options of ``nsys profile``."""


@dataclass(frozen=True, slots=True)
class NsysOption:
    """An option of ``nsys profile``."""

    option: Text
    """As typed."""
    when: Literal["always", "memory", "gpu_metrics", "python_sampling", "attach"]
    """``attach``: only under ``attach``; the others with the option of that name."""
    since: Text
    """Oldest release that was seen to accept the option in this form."""
    reason: Text


@dataclass(frozen=True, slots=True)
class Capability(NamedRow):
    """Something that a capture may hold."""

    title: Text
    """What the capture holds if it has the capability."""
    claims: Texts
    """The parts of a report that depend on it."""
    remedy: Text
    """How to record it if it is missing."""
    nsys: Texts = ()
    """Options of ``nsys profile`` that record it."""
    settings: Mapping[str, Value] = field(default_factory=dict)
    """Config keys that record it, with their values."""
    frameworks: tuple[Annotated[Text, one_of(FRAMEWORKS)], ...] = FRAMEWORKS
    """Frameworks in which the settings do that."""

    def __post_init__(self) -> None:
        raise_contradictions(contradictions_of_settings(self.settings, ("settings",), config_keys().keys))


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """``capture.yaml``."""

    first_step: int
    last_step: int
    minimum_steps: int
    maximum_overhead_fraction: Annotated[float, between(0, 1)]
    """Of the kept steps: up to this much time in which the profiler holds up the program counts as low overhead."""
    nsys: tuple[NsysOption, ...]
    """In the order in which ``three-walls capture`` prints them."""
    profiling_class: Text
    """Megatron-Bridge override that makes a profiling section where the recipe has none."""
    saved_config: Text
    """Path in Megatron-Bridge's configuration of the file to which it is saved."""
    capabilities: ByName[Capability]
    """In the order of ``three-walls doctor``."""
    dropped: tuple[Pattern, ...]
    """Found in messages of the profiler about missing events."""
    refused: tuple[Pattern, ...]
    """Found in messages that state why hardware counters could not be read."""
    usual: tuple[Pattern, ...]
    """Found in messages that sound alike and are harmless."""


@cache
def capture_rules() -> CaptureRules:
    """The rules that ship with the program."""
    return load_table(TABLES_DIR / "capture.yaml", CaptureRules)
