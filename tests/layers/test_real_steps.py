"""Real steps get the same labels with and without what their captures recorded of the host."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest

from tests.analyzed_samples import reads_sample
from tests.paths import SAMPLES
from three_walls.layers.label_operations import label_operations, labelled_step
from three_walls.layers.labels import LabelledOperations
from three_walls.layers.unfused_work import classify_unfused
from three_walls.pipeline import measure_run
from three_walls.step.intervals import DURATION
from three_walls.step.operators import nest_operators
from three_walls.step.step_tables import Operations
from three_walls.step.step_view import StepView, operators, step
from three_walls.trace.run_request import RunRequest

pytestmark = pytest.mark.slow

RECOMPUTED = "qwen-full-recompute.sqlite.xz"
DEEPEP = "wide-nvlink-deepep.sqlite.xz"
OVERLAPPED = "wide-slowlink-ep-overlap.sqlite.xz"
WITHOUT_RANGES = {
    "te-fused-attention": 0.99,
    RECOMPUTED: 0.99,  # every layer is replayed
    "shared-experts": 0.99,  # attention is replayed
    OVERLAPPED: 0.99,  # forward and backward are launched in turn
    DEEPEP: 0.99,
    "te-cuda-graphs": 0.98,
}
IN_ORDER = (RECOMPUTED, DEEPEP, "shared-experts")


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """``make test`` tries what plain Megatron-LM gives; the larger captures take longest."""
    return [reads_sample(name), *([pytest.mark.exhaustive] * name.startswith(("te-", "qwen")))]


@cache
def read(name: str) -> tuple[StepView, LabelledOperations]:
    path = SAMPLES / name
    config = next(path.glob("run_config*.yaml"), None) if path.is_dir() else None
    artifacts = measure_run(RunRequest((path,), config=config), lambda _: None).artifacts
    return artifacts.pull(step), artifacts.pull(labelled_step)


def label_without_ranges(view: StepView, operations: Operations) -> LabelledOperations:
    ranges = nest_operators(view.trace.ranges.clear())
    work = classify_unfused(operations, ranges, view.config).operations
    return label_operations(work, view.names, ranges, view.config)


def agreement(found: LabelledOperations, known: LabelledOperations, column: str) -> float:
    """The part of the time in layers in which both have the same label."""
    is_same = found[column].eq_missing(known[column])
    in_layers = known["pass"].is_not_null()
    ns = known.select(DURATION).to_series()
    return ns.filter(in_layers & is_same).sum() / ns.filter(in_layers).sum()


@pytest.mark.parametrize(
    ("name", "least"), [pytest.param(name, least, marks=marks_of(name)) for name, least in WITHOUT_RANGES.items()]
)
def test_without_ranges_the_threads_show_directions_layers_and_modules(name: str, least: float) -> None:
    view, known = read(name)
    found = label_without_ranges(view, view.started)
    for column in ("direction", "module", "layer", "micro_batch"):
        assert agreement(found, known, column) >= least, column


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in IN_ORDER])
def test_without_threads_the_order_on_the_device_does(name: str) -> None:
    view, known = read(name)
    unknown = pl.lit(None, dtype=pl.Int64)
    found = label_without_ranges(
        view, view.started.with_columns(launch_thread=unknown, launch_start_ns=unknown, launch_end_ns=unknown)
    )
    for column in ("direction", "module", "layer", "micro_batch"):
        assert agreement(found, known, column) >= 0.98, column


@reads_sample(OVERLAPPED)
def test_interleaved_layers_of_unknown_threads_are_not_guessed_at() -> None:
    view, _ = read(OVERLAPPED)
    unknown = pl.lit(None, dtype=pl.Int64)
    found = label_without_ranges(view, view.started.with_columns(launch_thread=unknown, launch_start_ns=unknown))
    assert found["pass"].null_count() == found.height


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in WITHOUT_RANGES])
@pytest.mark.parametrize("has_ranges", [True, False], ids=["ranges", "threads"])
def test_labels_depend_on_the_kinds_of_kernels_and_not_on_their_names(name: str, has_ranges: bool) -> None:
    """With other names of the same categories nothing changes."""
    view, _ = read(name)
    ranges = operators(view) if has_ranges else nest_operators(view.trace.ranges.clear())
    work = classify_unfused(view.started, ranges, view.config).operations
    known = label_operations(work, view.names, ranges, view.config)
    found = label_operations(work, {number: f"k{number}" for number in view.names}, ranges, view.config)
    assert found.drop("name").equals(known.drop("name"))
    assert found["name"].drop_nulls().str.starts_with("k").all()
