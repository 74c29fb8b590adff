"""Exports of three generations of Nsight Systems are read alike.

The first two are of one program (six steps of thirteen kernels on one H100, marked with NVTX), captured and exported by
the generation that the file is named after. The third is a sample of a training run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.trace_files import plain_sqlite

GENERATIONS = Path(__file__).with_name("generations")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "step_range", "version", "schema", "gpu", "steps"),
    [
        (GENERATIONS / "2022.4.2.sqlite.xz", "iteration", "2022.4.2.1", "3.0.0", "NVIDIA H100 80GB HBM3", 6),
        (GENERATIONS / "2023.4.4.sqlite.xz", "iteration", "2023.4.4.54", "3.7.2", "NVIDIA H100 80GB HBM3", 6),
        (SAMPLES / "wide-nvlink-alltoall.sqlite", None, "2024.2.3.38", "3.11.1", "NVIDIA H200", 2),
    ],
    ids=["2022.4", "2023.4", "2024.2"],
)
def test_an_export_of_every_generation_gives_its_version_its_gpu_and_a_whole_budget(
    trace: Path, step_range: str | None, version: str, schema: str, gpu: str, steps: int
) -> None:
    report = analyze(trace, step_range=step_range)
    (file,) = report.inputs
    assert ((file.nsys_version or "").split("-")[0], file.schema) == (version, schema)
    assert report.facts.get("gpu.name").value == gpu
    (rank,) = report.ranks
    assert len(rank.steps) == steps
    for step in rank.steps:
        assert sum(step.budget.values()) == step.end_ns - step.start_ns


def test_a_text_that_is_not_utf_8_is_read_with_replacement_marks() -> None:
    with plain_sqlite(GENERATIONS / "2022.4.2.sqlite.xz") as plain, NsysExport(plain, plain) as export:
        gpu_info = dict(export.pairs("TARGET_INFO_SYSTEM_ENV"))["GpuInfo"]
    assert "NVIDIA H100 80GB HBM3" in gpu_info
    assert "\N{REPLACEMENT CHARACTER}" in gpu_info
