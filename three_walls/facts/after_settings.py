"""What a run's facts become with other settings, as far as the configuration alone decides it: sizes and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from three_walls.facts.memory_estimate import (
    LOW_PRECISION,
    estimated_stages,
    memory_peak_bytes,
    peak_with_larger_micro_batch,
)
from three_walls.lib.declare import CATALOG, Artifacts
from three_walls.lib.fact import Fact, FactValue
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.megatron.stage_memory import estimate_stages, find_fullest
from three_walls.step import step_view

_FOLLOWING = (
    "num_microbatches",
    "smaller_micro_batch_size",
    "larger_micro_batch_size",
    "dispatched_tokens_count",
    "memory_peak_fraction",
    "memory_peak_without_recompute_ratio",
    "sufficient_recompute_modules",
    "memory_peak_sufficient_recompute_ratio",
    "memory_peak_larger_micro_batch_ratio",
    "memory_peak_larger_micro_batch_without_recompute_ratio",
)


def find_facts_after(measured: Artifacts, settings: Mapping[str, FactValue]) -> dict[str, Fact]:
    """The facts that follow from the configuration, of the run with ``settings`` (``config.<key>`` to a value).

    The peak of memory is the logged one, plus what the estimate for the new configuration is more than for the old. In
    FP8, whose activations are not counted, it is known where a larger micro-batch alone changes it: an upper bound.
    """
    values = {name.partition(".")[2]: value for name, value in settings.items() if name.startswith("config.")}
    run, as_run = measured.pull(step_view.run), measured.pull(step_view.config_as_run)
    new_run, new_as_run = (_with_values(config, values) for config in (run.config, as_run))
    after = measured.with_inputs(
        {
            "run": replace(run, config=new_run, layout=read_layout(new_run)),
            "config_as_run": new_as_run,
            "step": measured.find(step_view.step),  # what was captured stays
            "any_step": measured.find(step_view.any_step),
            "memory_peak_bytes": _move_peak(measured, new_as_run),
        }
    )
    found = {}
    for name in _FOLLOWING:
        definition, measurement = CATALOG.declared[name].definition, after.named(name)
        assert definition is not None
        found[name] = Fact(name, measurement.value, definition.unit, measurement.missing_reason, definition)
    return found


def _with_values(config: RunConfig, values: Mapping[str, FactValue]) -> RunConfig:
    changed = {key: ConfigValue(value, "planned") for key, value in values.items()}
    return replace(config, values={**config.values, **changed})


def _move_peak(measured: Artifacts, config: RunConfig) -> Measurement[int]:
    peak, now, then = measured.find(memory_peak_bytes), measured.find(estimated_stages), estimate_stages(config)
    if peak.value is None or now.value is None or then.value is None:
        return missing(str(peak.missing_reason or now.missing_reason or then.missing_reason))
    old, new = find_fullest(now.value), find_fullest(then.value)
    if old.activations.value is not None and new.activations.value is not None:
        return known(peak.value + new.total - old.total)
    times = _times_the_micro_batch(measured.pull(step_view.config_as_run), config)
    if times is None:
        return missing(str(old.activations.missing_reason or new.activations.missing_reason))
    return known(peak_with_larger_micro_batch(peak.value, now.value, times))


def _times_the_micro_batch(before: RunConfig, after: RunConfig) -> float | None:
    """How many times as large the micro-batch is, in a run in FP8, of whose activations none are counted.

    None where anything else changes what memory holds: in BF16, with the same micro-batch, the estimates then differ.
    """
    size, larger = before.whole_number("micro_batch_size"), after.whole_number("micro_batch_size")
    if not size or not larger or larger < size or any(before.get(key) != after.get(key) for key in LOW_PRECISION):
        return None
    counted = {**dict.fromkeys(LOW_PRECISION), "micro_batch_size": size}
    was, now = (estimate_stages(_with_values(config, counted)).value for config in (before, after))
    if was is None or now is None or any(stage.activations.value is None for stage in (*was, *now)):
        return None
    return larger / size if find_fullest(was).total == find_fullest(now).total else None
