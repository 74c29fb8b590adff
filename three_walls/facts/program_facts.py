"""What kind of program was captured: whether it trains, and whether it is a Megatron run.

Rules with edits and the verdict need both: an inference server or another framework has no Megatron settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

import polars as pl

from three_walls.lib.declare import fact, flag
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.megatron.settings.setting_sources import USER
from three_walls.step.build_timeline import Timeline
from three_walls.step.step_rows import StepSource
from three_walls.tables.megatron_signs import RangeSign, Sign, megatron_signs
from three_walls.trace.read_inputs import Inputs
from three_walls.trace.read_trace import Trace
from three_walls.trace.schemas import distinct_rows

_NAMES = {"bridge": "Megatron-Bridge", "megatron_lm": "Megatron-LM"}


@fact("text", "a sign of training steps")
def training_sign(timeline: Timeline) -> Measurement[str]:
    """What shows that the capture holds training steps: NVTX ranges of steps, or kernels of an optimizer."""
    sources = {source for source in timeline.sources.values() if source is not StepSource.ONE_WINDOW}
    if sources:
        return known(", ".join(sorted(source.value for source in sources)))
    if timeline.operations["anchor"].any():
        return known("kernels of an optimizer")
    return missing(
        "the capture has neither ranges of training steps nor kernels of an optimizer (capture training steps, or name "
        "the NVTX ranges that are steps with --step-range)"
    )


@fact("text", "a sign of a Megatron run")
def megatron_sign(inputs: Inputs) -> Measurement[str]:
    """What shows that the program is Megatron: its command line, configuration or log, its NVTX ranges or its
    kernels."""
    signs = megatron_signs()
    ranges = [trace.ranges["text"] for trace in inputs.with_kernels]
    kernels = {name for trace in inputs.with_kernels for name in _kernel_names(trace)}
    own = (*_list_explicit_signs(inputs), *_find_ranges(signs.ranges, ranges), *_find_kernels(signs.kernels, kernels))
    if own:
        return known(own[0])
    shared = (*_find_ranges(signs.shared_ranges, ranges), *_find_kernels(signs.shared_kernels, kernels))
    doubt = f"; {' and '.join(shared)} occur in other programs too" if shared else ""
    return missing(
        f"neither command line, configuration, log, NVTX ranges nor kernels show a Megatron run{doubt} (if this is a "
        "Megatron run, give --config, --log or --set)"
    )


@flag(
    "whether this is a Megatron training run",
    if_true="The inputs show a Megatron training run",
    if_false="The inputs do not show a Megatron training run",
)
def is_megatron_training(training_sign: Measurement[str], megatron_sign: Measurement[str]) -> bool:
    """Whether the inputs show both training steps and Megatron."""
    return not training_sign.is_missing and not megatron_sign.is_missing


def _list_explicit_signs(inputs: Inputs) -> Iterator[str]:
    """Signs of Megatron in settings and logs, the most direct first."""
    for settings in (*inputs.explicit, inputs.with_kernels[0].launch):
        if settings.dialect in _NAMES and settings.is_certain:
            yield f"settings of {_NAMES[settings.dialect]}"
    if any(settings.source == USER and settings.values for settings in inputs.explicit):
        yield "settings given with --set"
    if inputs.log is not None and inputs.log.iterations:
        yield "iterations in the training log"


def _kernel_names(trace: Trace) -> Iterator[str]:
    """The full name of each kernel; its short name, which has no namespace, only where the full one is unknown."""
    kernels = distinct_rows(trace.operations.select("kind", "name_id", "short_name_id")).filter(kind="kernel")
    ids = kernels.select(pl.coalesce("name_id", "short_name_id").alias("id"))
    for name_id in ids["id"].drop_nulls().unique().to_list():
        yield trace.names.get(name_id, "")


def _find_kernels(signs: Iterable[Sign], names: Set[str]) -> list[str]:
    return [sign.shown_as for sign in signs if any(sign.pattern.search(name) for name in names)]


def _find_ranges(signs: Iterable[RangeSign], texts: Sequence[pl.Series]) -> list[str]:
    """The signs among the texts of ranges, of which a trace may have millions."""
    return [
        sign.shown_as
        for sign in signs
        if any(column.str.contains(part, literal=True).any() for column in texts for part in sign.texts)
    ]
