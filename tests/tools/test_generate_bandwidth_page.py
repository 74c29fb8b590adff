"""The page on the exchange of tokens: published figures, and measured ones only where they were measured."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tools.generate_bandwidth_page import DATA, PAGE, page_of, read_page

PUBLISHED = yaml.safe_load((DATA / "published.yaml").read_text())
RESULT = {
    "dispatcher": "hybridep", "operation": "dispatch", "tokens": 4096, "hidden": 8192, "topk": 8, "experts_per_gpu": 2,
    "dtype": "bf16", "sms": 8, "left_bytes": 40_000_000, "algorithm_bytes": 80_000_000, "median_us": 200.0,
    "quartiles_us": [190.0, 210.0], "left_gb_per_s": 200.0, "algorithm_gb_per_s": 400.0,
}  # fmt: skip
MEASURED: dict[str, Any] = {
    "gpu": "a GPU", "gpus": 8, "backend": "nccl", "repeats": 30, "versions": {"torch": "2.11"}, "environment": {},
    "results": [RESULT, RESULT | {"dispatcher": "alltoall", "sms": None, "left_gb_per_s": 150.0}],
    "missing": [{"dispatcher": "deepep", "reason": "it does not import", "measurements": 5}],
}  # fmt: skip


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == read_page(), "run: python -m tools.generate_bandwidth_page"


def test_without_measurements_no_figure_is_called_measured() -> None:
    page = page_of(PUBLISHED, {}, [{"set": ["micro_batch_size=2"]}])
    assert page.count("Not measured yet.") == 2
    assert "| hybridep |" not in page


def test_a_file_of_measurements_gives_a_table_and_its_reasons() -> None:
    page = page_of(PUBLISHED, {"eight.json": MEASURED}, [])
    assert "`eight.json`: 8 x a GPU, torch 2.11; medians of 30." in page
    assert "| hybridep | 8 | dispatch, bf16 | 200 | 40.0 | 200 | 400 |" in page
    assert "| alltoall | as NCCL chooses | dispatch, bf16 | 200 | 40.0 | 150 | 400 |" in page
    assert page.count("4096 tokens a GPU, hidden 8192, top-8, 2 experts a GPU:") == 1
    assert "- deepep: it does not import" in page


def test_a_measured_edit_of_the_dispatcher_stands_beside_the_published_speed_up() -> None:
    settings = ["moe_token_dispatcher_type=flex", "moe_flex_dispatcher_backend=deepep"]
    edit = {"name": "DeepEP", "base": "trace", "set": settings, "base_ms": 110.0, "edited_ms": 100.0}
    assert "| DeepEP | `trace` | 110.0 | 100.0 | 1.10x |" in page_of(PUBLISHED, {}, [edit])


@pytest.mark.parametrize("row", PUBLISHED["speedups"]["rows"], ids=lambda row: f"{row['model']}, {row['precision']}")
def test_a_published_speed_up_is_the_one_that_the_guide_prints(row: dict[str, Any]) -> None:
    printed = {(829, 943): 1.14, (597, 645): 1.08, (665, 698): 1.05, (728, 800): 1.10}
    assert round(row["to_tflops"] / row["from_tflops"], 2) == printed[row["from_tflops"], row["to_tflops"]]
