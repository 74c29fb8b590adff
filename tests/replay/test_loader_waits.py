"""A data loader that is waited for sets the pace of the step; one that has its batch ready does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.examples import iteration
from tests.trace_builder import ADAM, GEMM, TraceBuilder
from three_walls import analyze
from three_walls.advice.decide_verdict import decide_verdict
from three_walls.advice.format.conditions import KnownFacts
from three_walls.advice.testing.rule_cases import sheet_of
from three_walls.facts.sheet import DEFINITIONS
from three_walls.report.report import LiveReport
from three_walls.report.sections.plan import NO_SETTING
from three_walls.report.sections.verdict import verdict

pytestmark = pytest.mark.slow

MS = 1_000_000
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
ASKED = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__, op_id = 9"


def run_with_wait(
    folder: Path,
    waited_ns: int,
    paused_ns: int = 0,
    *,
    is_ahead: bool = False,
    only: int | None = None,
    steps: int = 6,
    logged_ms: float | None = None,
) -> LiveReport:
    """Steps of 10 ms: the thread clears gradients, asks for a batch, launches a GEMM and the optimizer, and waits.

    ``paused_ns``: how long its host does nothing after the GEMM's launch; steps are longer by it. ``is_ahead``: the GPU
    has another GEMM to run while the thread waits. ``only``: the one step that waits, where not all do. ``logged_ms``:
    how long each iteration of its log takes.
    """
    builder = TraceBuilder()
    for order in range(steps):
        at = 10_000 + order * (10 * MS + paused_ns)
        for fill in range(10):
            builder.kernel(FILL, at + 2_000 * fill, at + 2_000 * (fill + 1), launched=at - 14_000 + 1_200 * fill)
        if is_ahead or only not in (None, order):
            builder.kernel(GEMM, at + 20_000, at + waited_ns + 29_000, launched=at - 2_000)
        builder.nvtx(ASKED, at, at + waited_ns)
        launched = at + waited_ns + 25_000
        builder.kernel(GEMM, launched + 5_000, at + 8 * MS, launched=launched)
        at, launched = at + paused_ns, launched + paused_ns
        builder.kernel(ADAM, at + 8 * MS, at + 10 * MS - 20_000, launched=launched + 10_000)
        builder.api("cudaDeviceSynchronize_v3020", launched + 20_000, at + 10 * MS - 15_000)
    log = folder / "train.log"
    log.write_text("".join(f"{iteration(number, logged_ms or 0)}\n" for number in range(1, 40)))
    return analyze(builder.write(folder / "t.sqlite"), logs=[log] if logged_ms else [])


@pytest.mark.parametrize(("waited_ns", "is_paced"), [(4 * MS, True), (MS // 100, False)])
def test_faster_gemms_shorten_a_step_unless_it_waits_for_its_data_loader(
    tmp_path: Path, waited_ns: int, is_paced: bool
) -> None:
    report = run_with_wait(tmp_path, waited_ns)
    assert report.facts.get("data_loader_wait_ns").value == waited_ns
    assert report.facts.get("data_loader_sets_pace").value is is_paced
    answer = report.replay.with_edits(scales={"gemms": 0.5})
    assert answer.step is not None
    assert answer.after is not None
    saved_ns = answer.step.likely_ns - answer.after.likely_ns
    assert abs(saved_ns) <= 0.002 * answer.step.likely_ns if is_paced else saved_ns >= MS
    assert sum(answer.budget_after.values()) == answer.after.likely_ns


def test_a_host_that_waits_for_a_batch_while_the_gpu_has_work_does_not_wait_for_a_loader_that_sets_the_pace(
    tmp_path: Path,
) -> None:
    report = run_with_wait(tmp_path, 4 * MS, is_ahead=True)
    assert report.facts.get("data_loader_wait_ns").value == 4 * MS
    assert report.facts.get("data_loader_sets_pace").value is False
    assert "data loader" not in report.verdict.reason
    answer = report.replay.with_edits(scales={"gemms": 0.5})
    assert answer.step is not None
    assert answer.after is not None
    assert answer.step.likely_ns - answer.after.likely_ns >= MS


@pytest.mark.parametrize("only", range(1, 5))
def test_a_batch_that_is_late_in_one_step_of_several_sets_no_pace(tmp_path: Path, only: int) -> None:
    report = run_with_wait(tmp_path, 4 * MS, only=only)
    assert report.facts.get("data_loader_wait_ns").value == 4 * MS
    assert report.facts.get("data_loader_sets_pace").value is False
    answer = report.replay.with_edits(scales={"gemms": 0.5})
    assert answer.step is not None
    assert answer.after is not None
    assert answer.step.likely_ns - answer.after.likely_ns >= MS


@pytest.mark.parametrize(
    ("steps", "logged_ms", "is_paced"),
    [
        pytest.param(2, 6.0, False, id="the log shows that other steps do not wait"),
        pytest.param(2, 10.0, True, id="the log shows that they do"),
        pytest.param(2, None, True, id="nothing shows other steps"),
        pytest.param(6, 6.0, True, id="all captured steps wait"),
    ],
)
def test_a_batch_that_is_late_in_the_only_step_sets_no_pace_where_the_log_shows_others(
    tmp_path: Path, steps: int, logged_ms: float | None, is_paced: bool
) -> None:
    report = run_with_wait(tmp_path, 4 * MS, steps=steps, logged_ms=logged_ms)
    assert report.step.kept == (1 if steps == 2 else 4)
    assert report.facts.get("data_loader_sets_pace").value is is_paced


def test_time_that_starves_for_a_batch_is_no_upper_bound_of_an_edit_and_the_loader_comes_first(tmp_path: Path) -> None:
    report = run_with_wait(tmp_path, 4 * MS)
    starved_ns, recoverable_ns = (
        report.facts.get(name).value for name in ("launch_starved_ns", "launch_starved_recoverable_ns")
    )
    assert starved_ns - recoverable_ns == 4 * MS - 20_000  # the kernel that fills runs meanwhile
    (hero, *_) = verdict(report).blocks
    assert [(edit.title, edit.note) for edit in hero.edits[:1]] == [
        ("Make the data loader faster than the step", NO_SETTING)
    ]


def test_a_step_that_takes_longer_than_its_batches_is_as_long_as_its_work(tmp_path: Path) -> None:
    answer = run_with_wait(tmp_path, 4 * MS).replay.with_edits(scales={"gemms": 4.0})
    assert answer.step is not None
    assert answer.after is not None
    assert answer.after.likely_ns > 1.5 * answer.step.likely_ns


@pytest.mark.parametrize("paused_ns", [0, 20 * MS])
def test_a_pause_beside_the_waiting_for_a_batch_counts_once(tmp_path: Path, paused_ns: int) -> None:
    report = run_with_wait(tmp_path, 4 * MS, paused_ns)
    assert report.facts.number("host_pause_cost_ns") == pytest.approx(paused_ns, abs=0.1 * MS)
    predicted_ns = report.facts.number("predicted_unprofiled_step_ns")
    assert predicted_ns == pytest.approx(10 * MS + paused_ns, abs=0.1 * MS)


def test_the_verdict_names_the_data_loader_that_sets_the_pace() -> None:
    known = KnownFacts.of(DEFINITIONS)
    values = {"training_sign": "a log", "megatron_sign": "a log", "step_ns": 10 * MS, "data_loader_wait_fraction": 0.4}
    paced = decide_verdict(sheet_of({**values, "data_loader_sets_pace": True}, known))
    assert paced.abstained
    assert "waits for its data loader (40.0% of the traced step)" in paced.reason
    assert "data loader" not in decide_verdict(sheet_of({**values, "data_loader_sets_pace": False}, known)).reason
