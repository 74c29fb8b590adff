"""GPUs that nothing states follow from the micro-batches of a step."""

from __future__ import annotations

from types import MappingProxyType

import polars as pl
import pytest

from three_walls.facts.counted_world import COUNTED, add_counted_world
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.step.build_timeline import Timeline

# Two layers in each of two stages. Four micro-batches of 1 make half a batch of 8: two replicas x two stages = 4 GPUs.
SETTINGS: dict[str, ConfigData] = {
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "context_parallel_size": 1,
    "micro_batch_size": 1, "global_batch_size": 8, "num_layers": 4,
}  # fmt: skip
MICRO_BATCHES, LAYERS_OF_A_STAGE = 4, 2


def config(**changed: ConfigData) -> RunConfig:
    values = {name: ConfigValue(value, "config file") for name, value in {**SETTINGS, **changed}.items()}
    return RunConfig(MappingProxyType(values))


def timeline(*passes_of_steps: int) -> Timeline:
    """One rank; per step so many passes of attention forward and as many backward."""
    steps, operations = [], []
    for number, passes in enumerate(passes_of_steps):
        start = number * 1_000
        steps.append({"rank_index": 0, "step": number, "start_ns": start, "end_ns": start + 1_000, "kept": True})
        for place in range(2 * passes):
            at = start + place
            phase = "forward" if place < passes else "backward"
            operations.append(
                {
                    "rank_index": 0,
                    "start_ns": at,
                    "end_ns": at + 1,
                    "stream": 7,
                    "category": "attention",
                    "phase": phase,
                }
            )
    tables = dict.fromkeys(("synchronizing", "overhead", "api_calls", "stream_waits", "event_records"), pl.DataFrame())
    columns = {"rank_index": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "stream": pl.Int64}
    schema = {**columns, "category": pl.String, "phase": pl.String}
    return Timeline(operations=pl.DataFrame(operations, schema=schema), steps=pl.DataFrame(steps), sources={}, **tables)


def counted(run: RunConfig, seen: Timeline) -> ConfigValue | None:
    return add_counted_world(run, seen).sizes.get("world_size")


def test_micro_batches_of_every_step_give_the_replicas_and_so_the_gpus() -> None:
    passes = MICRO_BATCHES * LAYERS_OF_A_STAGE
    assert counted(config(), timeline(passes, passes)) == ConfigValue(4, COUNTED)


def test_what_the_launcher_states_is_not_counted() -> None:
    stated = RunConfig(config().values, MappingProxyType({"WORLD_SIZE": ConfigValue(16, "environment")}))
    assert add_counted_world(stated, timeline(8)) is stated


@pytest.mark.parametrize(
    ("changed", "passes"),
    [
        ({}, (8, 6)),  # steps differ
        ({}, (7,)),  # half a micro-batch
        ({}, (0,)),  # no backward pass
        ({}, (6,)),  # three micro-batches do not divide the batch
        ({"global_batch_size": None}, (8,)),
        ({"mtp_num_layers": 1}, (8,)),  # another layer with attention
        ({"rampup_batch_size": (2, 2, 100)}, (8,)),  # the batch is not the final one
        ({"num_layers_in_first_pipeline_stage": 1}, (8,)),  # stages differ
        ({"context_parallel_size": 2}, (8,)),  # a pass is one kernel, or two
    ],
)
def test_what_does_not_divide_or_is_not_known_leaves_the_number_unknown(
    changed: dict[str, ConfigData], passes: tuple[int, ...]
) -> None:
    assert counted(config(**changed), timeline(*passes)) is None
