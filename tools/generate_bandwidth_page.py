"""Writes ``docs/generated/dispatch-bandwidth.md``: ``python -m tools.generate_bandwidth_page``.

Published bandwidths and speed-ups of expert-parallel dispatchers stand beside what was measured: every JSON file of
``benchmarks/gpu/dispatch_bandwidth.py`` in ``benchmarks/dispatch_bandwidth``, and the edits of ``measured_pairs.yaml``
that change the dispatcher. What was not measured is said to be so. A test compares the page with what this writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "dispatch_bandwidth"
PAIRS = ROOT / "benchmarks" / "measured_pairs.yaml"
PAGE = ROOT / "docs" / "generated" / "dispatch-bandwidth.md"
DISPATCHER_SETTING = re.compile("moe_(token|flex)_dispatcher_")
SHAPE = ("tokens", "hidden", "topk", "experts_per_gpu")

Row = Mapping[str, Any]


def page_of(published: Row, measured: Mapping[str, Row], edits: Iterable[Row]) -> str:
    """The page as Markdown. ``measured``: files of dispatch_bandwidth.py by name."""
    lines = [
        "# How fast tokens are exchanged",
        "",
        "<!-- written by `python -m tools.generate_bandwidth_page`: do not edit -->",
        "",
        "Dispatch and combine of a mixture-of-experts layer inside one NVLink domain, without the rest of a step.",
        "`benchmarks/gpu/dispatch_bandwidth.py` measures them; its text defines both bandwidths. *By the algorithm*",
        "counts every row that a GPU receives, its own included, and so may be above the speed of the link.",
        "",
        "## Measured",
        "",
    ]
    for name, found in sorted(measured.items()):
        lines += [*_show_measured(name, found), ""]
    if not measured:
        lines += ["Not measured yet.", ""]
    bandwidth, statements, speedups = (published[part] for part in ("bandwidth", "statements", "speedups"))
    lines += [
        "## Published: bandwidth by number of SMs",
        "",
        f"{bandwidth['shape']}; GB/s by the algorithm. Source:",
        f"{bandwidth['source']}.",
        f"{bandwidth['difference']}",
        "",
        "| GPUs | dispatcher | timed | SMs | dispatch, FP8 | dispatch, BF16 | combine |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['gpus']} x {row['gpu']} | {row['dispatcher']} | {row['timed']} | {row['sms']} | "
            f"{row['dispatch_fp8']:.0f} | {row['dispatch_bf16']:.0f} | {row['combine']:.0f} |"
            for row in bandwidth["rows"]
        ),
        "",
        f"In words, of {statements['shape']}, from {statements['source']}:",
        "",
        *(f"- {statement}" for statement in statements["rows"]),
        "",
        "## Speed-up of a step",
        "",
        f"Published ({speedups['source']}), TFLOPS per GPU:",
        "",
        "| model | precision | from | to | speed-up |",
        "|---|---|---|---|---|",
        *(
            f"| {row['model']} | {row['precision']} | {row['from']}, {row['from_tflops']} | "
            f"{row['to']}, {row['to_tflops']} | {row['to_tflops'] / row['from_tflops']:.2f}x |"
            for row in speedups["rows"]
        ),
        "",
        "Measured (`benchmarks/measured_pairs.yaml`), ms a step:",
        "",
        *_show_edits([edit for edit in edits if any(map(DISPATCHER_SETTING.match, edit.get("set", ())))]),
    ]
    return "\n".join(lines) + "\n"


def _show_edits(edits: list[Row]) -> Iterator[str]:
    if not edits:
        yield "Not measured yet."
        return
    yield from ("| edit | base | from | to | speed-up |", "|---|---|---|---|---|")
    for edit in edits:
        base_ms, edited_ms = edit["base_ms"], edit["edited_ms"]
        yield f"| {edit['name']} | `{edit['base']}` | {base_ms} | {edited_ms} | {base_ms / edited_ms:.2f}x |"


def _show_measured(name: str, found: Row) -> Iterator[str]:
    """A table for each shape, then what was not measured."""
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    variables = "".join(f", {variable}={value}" for variable, value in found["environment"].items())
    yield f"`{name}`: {found['gpus']} x {found['gpu']}, {versions}{variables}; medians of {found['repeats']}."
    for shape in dict.fromkeys(tuple(row[key] for key in SHAPE) for row in found["results"]):
        tokens, hidden, topk, experts = shape
        yield from (
            "",
            f"{tokens} tokens a GPU, hidden {hidden}, top-{topk}, {experts} experts a GPU:",
            "",
            "| dispatcher | SMs | operation | us | MB that leave | GB/s that leave | GB/s by the algorithm |",
            "|---|---|---|---|---|---|---|",
        )
        for row in found["results"]:
            if tuple(row[key] for key in SHAPE) == shape:
                yield (
                    f"| {row['dispatcher']} | {row['sms'] or 'as NCCL chooses'} | {row['operation']}, {row['dtype']} | "
                    f"{row['median_us']:.0f} | {row['left_bytes'] / 1e6:.1f} | {row['left_gb_per_s']:.0f} | "
                    f"{row['algorithm_gb_per_s']:.0f} |"
                )
    if found["missing"]:
        yield from ("", "Not measured:", "")
    for row in found["missing"]:
        yield f"- {row['dispatcher']}: {row['reason']}"


def read_page() -> str:
    """The page of the data in the repository."""
    measured = {path.name: json.loads(path.read_text()) for path in DATA.glob("*.json")}
    published, pairs = (yaml.safe_load(path.read_text()) for path in (DATA / "published.yaml", PAIRS))
    return page_of(published, measured, pairs["edits"])


if __name__ == "__main__":
    PAGE.write_text(read_page(), encoding="utf-8")
