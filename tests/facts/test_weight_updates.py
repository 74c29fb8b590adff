"""The update of the weights: foreach kernels, an update on the host, repeated casts, checkpoints in a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace_builder import ADAM, GEMM, TraceBuilder
from three_walls import analyze
from three_walls.report.report import Report

pytestmark = pytest.mark.slow

MS = 1_000_000
US = 1_000
STEP = 100 * MS
FOREACH = (
    "void at::native::<unnamed>::multi_tensor_apply_kernel<M<4>, at::native::PointwiseOpScalarListFunctor<float, 4>>"
)
SCALE = "void at::native::<unnamed>::multi_tensor_apply_kernel<M<2>, at::native::BinaryOpScalarFunctor<float, 2>>"
CAST = "void transformer_engine::cast_transpose_optimized_kernel<true, float>"


class Run(TraceBuilder):
    """Five steps of 100 ms that begin with a GEMM of 50 ms and end with an update; ``add`` puts more into each."""

    def step(self, order: int, updates: str = ADAM, model_ms: int = 50) -> int:
        at = order * STEP + US
        if model_ms:
            self.kernel(GEMM, at, at + model_ms * MS, launched=at - 500)
        self.kernel(updates, at + 90 * MS, at + 96 * MS, launched=at + 89 * MS)
        return at

    def report(self, folder: Path, **settings: object) -> Report:
        stated = [f"{key}={value}" for key, value in settings.items()]
        return analyze(self.write(folder / "rank0.sqlite"), settings=stated)


@pytest.mark.parametrize(("name", "took_ms"), [(FOREACH, 6), (ADAM, 0), (SCALE, 0)])
def test_foreach_kernels_count_where_they_update_the_weights(tmp_path: Path, name: str, took_ms: int) -> None:
    run = Run()
    for order in range(5):
        run.step(order, updates=name)
        if name is SCALE:  # scaling gradients is no update
            run.kernel(ADAM, order * STEP + 97 * MS, order * STEP + 98 * MS, launched=order * STEP + 89 * MS)
    report = run.report(tmp_path)
    assert report.facts.get("foreach_optimizer_ns").value == took_ms * MS
    finding = next(finding for finding in report.findings if finding.rule == "foreach-optimizer")
    assert finding.outcome == ("found" if took_ms else "not_needed")


def test_the_device_idles_while_the_host_updates(tmp_path: Path) -> None:
    run = Run()
    for order in range(5):
        at = run.step(order)
        run.copy(2, at + 50 * MS, at + 51 * MS, launched=at + 49 * MS)
        run.copy(1, at + 85 * MS, at + 86 * MS, launched=at + 84 * MS)
    report = run.report(tmp_path, optimizer_cpu_offload="true")
    assert report.facts.get("update_idle_ns").value == (85 - 51) * MS


def test_without_copies_it_is_not_known_how_long_the_host_updates(tmp_path: Path) -> None:
    run = Run()
    for order in range(5):
        run.step(order)
    assert run.report(tmp_path).facts.get("update_idle_ns").is_missing


@pytest.mark.parametrize("once", [True, False])
def test_casts_of_weights_repeat_unless_some_run_in_the_first_micro_batch_alone(tmp_path: Path, once: bool) -> None:
    """Two micro-batches of 4 GEMMs; before each GEMM an activation is cast, and a weight."""
    run = Run()
    run.launched_as("train.py", RANK="0", WORLD_SIZE="1")
    for order in range(5):
        at = run.step(order, model_ms=0)
        for number in range(8):
            begin = at + number * 10 * MS
            run.kernel(CAST, begin, begin + MS, launched=begin - 200, grid=64)
            if number < 4 or not once:
                run.kernel(CAST, begin + MS, begin + 2 * MS, launched=begin - 100, grid=4096)
            run.kernel(GEMM, begin + 3 * MS, begin + 9 * MS, launched=begin - 50)
    sizes = {"micro_batch_size": 1, "global_batch_size": 2, "tensor_model_parallel_size": 1}
    report = run.report(tmp_path, **sizes, pipeline_model_parallel_size=1, context_parallel_size=1)
    assert report.facts.get("num_microbatches").value == 2, report.facts.get("num_microbatches").missing_reason
    assert report.facts.get("casts_repeat").value is not once


@pytest.mark.parametrize(("size", "count"), [(1 << 30, 1), (1 << 20, 0)])
def test_a_long_step_that_copies_much_to_the_host_saves_a_checkpoint(tmp_path: Path, size: int, count: int) -> None:
    run = Run()
    shift = 0
    for order in range(8):
        at = order * STEP + US + shift
        run.kernel(GEMM, at, at + 50 * MS, launched=at - 500)
        run.kernel(ADAM, at + 90 * MS, at + 96 * MS, launched=at + 89 * MS)
        if order == 4:
            run.copy(2, at + 97 * MS, at + 120 * MS, launched=at + 96 * MS, size=size)
            shift += 40 * MS
    assert run.report(tmp_path).facts.get("checkpoint_steps_count").value == count
