"""Which runs are refused, and which are compared with a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.runs.sample_runs import make_log_run, make_run
from three_walls.lib.errors import UnlikeRunsError
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.report.comparison import Severity
from three_walls.runs.comparability import find_unlikeness
from three_walls.runs.compare_runs import compare
from three_walls.runs.compared_run import Run


def codes(before: Run, after: Run) -> list[str]:
    return [unlike.code for unlike in find_unlikeness(before, after)]


def with_gpu(run: Run, gpu: str) -> Run:
    ranks = tuple(replace(rank, gpu=gpu) for rank in run.report.ranks)
    return replace(run, report=replace(run.report, ranks=ranks))


def test_like_runs_are_compared_without_a_word() -> None:
    assert codes(make_run(), make_run()) == []


def test_a_tuning_knob_makes_no_run_unlike() -> None:
    edited = make_run(
        settings={"moe_token_dispatcher_type": "flex", "recompute_granularity": None, "micro_batch_size": 2}
    )
    assert codes(make_run(), edited) == []


def test_another_model_is_refused_unless_forced() -> None:
    before, after = make_run(), make_run("deeper", settings={"num_layers": 94})
    with pytest.raises(UnlikeRunsError, match=r"deeper: .*num_layers 48 and 94.*--force") as refused:
        compare(before, [after])
    assert refused.value.exit_code == 7
    unlike = compare(before, [after], force=True).pairs[0].unlike
    assert [(item.code, item.severity) for item in unlike] == [("different-model", Severity.REFUSAL)]


def test_another_gpu_is_refused_and_an_unknown_one_is_not() -> None:
    before = make_run()
    with pytest.raises(UnlikeRunsError, match="NVIDIA H100 80GB HBM3 and NVIDIA H200"):
        compare(before, [with_gpu(make_run(), "NVIDIA H200")])
    assert "different-gpu" not in codes(before, make_log_run())


def test_experts_with_other_work_are_a_warning() -> None:
    forced = [make_run(settings={"moe_router_force_load_balancing": value}) for value in (False, True)]
    assert codes(*forced) == ["different-work"]


def test_layout_tokens_and_sequence_are_warnings() -> None:
    after = make_run(settings={"expert_model_parallel_size": 8, "seq_length": 8192})
    assert codes(make_run(), after) == ["different-sequence", "different-tokens", "different-layout"]


def test_captures_of_different_kinds_are_warnings() -> None:
    before, after = make_run(), make_run()
    capabilities = {**before.report.capabilities, "nvtx_ranges": "yes", "graph_nodes": "yes"}
    before = replace(before, report=replace(before.report, capabilities=capabilities))
    capabilities = {**capabilities, "nvtx_ranges": "no table"}
    after = replace(after, report=replace(after.report, capabilities=capabilities, tool_version="0.0.9"))
    found = find_unlikeness(before, after)
    assert [unlike.code for unlike in found] == ["different-capture", "different-version"]
    assert "nvtx ranges" in found[0].message


def test_runs_without_settings_are_compared_with_the_remark_that_nothing_shows_the_model() -> None:
    before, after = make_log_run("a"), make_log_run("b")
    before, after = (replace(run, report=replace(run.report, config=RunConfig())) for run in (before, after))
    assert codes(before, after) == ["model-not-known", "tokens-not-known", "logs-alone"]
