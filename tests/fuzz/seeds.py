"""The sound inputs that cases start from: small, because most of a case's time would go into reading them."""

from __future__ import annotations

import base64
import json
import lzma
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.paths import BRIDGE_RUNS, REPOSITORY, SAMPLES

sys.path.insert(0, str(REPOSITORY / "tests"))  # as pytest's conftest does: test modules import one another by name

from lockstep import Behaviour, simulate
from trace_builder import ADAM, ALL_GATHER, GEMM, MEGATRON, SEND_RECV, TraceBuilder

GENERATIONS = REPOSITORY / "tests" / "trace" / "generations"
"""Small real exports of older releases of the profiler."""
SECRET = "zq7Kv93LmX2pR8tWc5"
"""The value of an environment variable that no output may show."""

_KEPT_ROWS = 250
"""Of each table of a real export."""


@cache
def seed_content(name: str) -> bytes:
    """The bytes of the seed ``name``: one of :func:`seed_names`, or ``literal:`` and its xz-compressed bytes in base64.

    Raises KeyError for any other name.
    """
    if name.startswith("literal:"):
        return lzma.decompress(base64.b64decode(name.removeprefix("literal:")))
    return SEEDS[name]()


def seed_names(kind: str) -> list[str]:
    """Names of the seeds whose name begins with ``kind/``."""
    return sorted(name for name in SEEDS if name.startswith(f"{kind}/"))


def literal_seed(content: bytes) -> str:
    """The name of a seed that is ``content``."""
    return "literal:" + base64.b64encode(lzma.compress(content, preset=9)).decode()


def _export(builder: TraceBuilder) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return builder.write(Path(folder) / "seed.sqlite").read_bytes()


def _rich_builder() -> TraceBuilder:
    """Four steps with something in every table that the program reads."""
    builder = TraceBuilder(session_start_ns=1_795_220_371_000_000_000)
    builder.launched_as(
        MEGATRON, RANK="0", WORLD_SIZE="8", LOCAL_WORLD_SIZE="8", MY_API_TOKEN=SECRET, NCCL_DEBUG="INFO"
    )
    builder.nccl_schema(7, 24, (8, "NCCL communicator ID", 0), (8, "Message size [bytes]", 8), (4, "Peer", 16))
    for step in range(4):
        at = 1_000_000 * (step + 1)
        builder.nvtx(f"training_step_{step}", at, at + 990_000, inline=step % 2 == 0)
        builder.nvtx("aten::mm, seq = 1, op_id = 2, sizes = [[4, 8], [8, 4]]", at + 10, at + 400_000, inline=True)
        builder.nvtx("nccl:all_to_all", at + 390_000, at + 560_000)
        builder.kernel(GEMM, at + 1_000, at + 400_000, launched=at)
        builder.kernel(SEND_RECV, at + 390_000, at + 550_000, stream=20, launched=at + 380_000)
        builder.kernel(ALL_GATHER, at + 600_000, at + 640_000, stream=20, launched=at + 590_000)
        builder.nccl_call("ncclGroupEnd", at + 380_000, at + 381_000, schema=7, payload=bytes(range(24)))
        builder.record_event(step + 1, 20, at + 551_000).wait_event(step + 1, 7, at + 552_000)
        builder.copy(1, at + 560_000, at + 570_000, launched=at + 555_000, memory=(0, 2), size=4 << 20)
        builder.graph(at + 650_000, at + 700_000, launched=at + 645_000)
        builder.api("cudaStreamSynchronize_v3020", at + 700_000, at + 760_000)
        builder.kernel(ADAM, at + 800_000, at + 980_000, launched=at + 790_000)
        builder.allocation(at + 20, 1 << 20).overhead(at + 710_000, at + 720_000)
    return builder


def _without_kernels() -> bytes:
    """An export that is read whole and then refused, because nothing ran on a device."""
    builder = _rich_builder()
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        del builder.rows[table]
    return _export(builder)


def _rank_of_a_pair(rank: int) -> bytes:
    run = simulate([Behaviour(), Behaviour(slow=1.3)], steps=3, layers=1)
    return _export(run.builders[rank])


def _real_export() -> bytes:
    """A real export with all columns and types that the profiler declares; only the first rows of each table."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(lzma.decompress((SAMPLES / "healthy-two-gpus.sqlite.xz").read_bytes()))
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table.startswith("ENUM_"):
                database.execute(f'DROP TABLE "{table}"')
            elif table != "StringIds":
                database.execute(f'DELETE FROM "{table}" WHERE rowid > {_KEPT_ROWS}')
        database.commit()
        database.execute("VACUUM")
        return database.serialize()


def _log(path: Path, first: int, last: int) -> bytes:
    lines = lzma.decompress(path.read_bytes()).splitlines(keepends=True)
    return b"".join(lines[:first] + lines[-last:])


def _progress() -> bytes:
    return b"".join(
        b"2026-03-0%d 10:00:00\tJob ID: 4%d\t# GPUs: 8\t%s\n" % (day, day, entry)
        for day, entry in enumerate(
            (
                b"Starting job",
                b"Saved checkpoint\tIteration: 10\tJob throughput: 61.4 TFLOP/s/GPU\tCumulative throughput: 61.0 "
                b"TFLOP/s/GPU\tFloating-point operations: 1.00e+15\tTokens (in billions): 0.01",
            ),
            start=1,
        )
    )


def snapshot_value() -> dict[str, Any]:
    """A memory snapshot with shared stacks, a history and a failed allocation."""
    frames = [
        {"name": "forward", "filename": "/opt/megatron/core/transformer/moe/experts.py", "line": 7},
        {"name": "_init_group", "filename": "/site/torch/optim/adam.py", "line": 9},
    ]
    blocks = [
        {"address": 4096 * number, "size": 4096, "requested_size": 4000, "state": state, "frames": frames}
        for number, state in enumerate(("active_allocated", "inactive", "active_pending_free"), start=1)
    ]
    segment = {
        "device": 0, "address": 4096, "total_size": 1 << 20, "allocated_size": 8192, "segment_type": "large",
        "segment_pool_id": (0, 0), "frames": frames, "blocks": blocks,
    }  # fmt: skip
    history = [
        {"action": action, "addr": 4096, "size": 4096, "stream": 0, "time_us": order, "frames": frames}
        for order, action in enumerate(("segment_alloc", "alloc", "free_requested", "free_completed", "snapshot"))
    ]
    failure = {"action": "oom", "addr": 0, "size": 1 << 30, "stream": 0, "device_free": 1 << 20, "frames": frames}
    return {"segments": [segment], "device_traces": [[*history, failure]], "allocator_settings": {}}


def run_config_value() -> dict[str, Any]:
    """A real run_config.yaml, as data."""
    text = lzma.decompress((BRIDGE_RUNS / "0.6.2" / "run_config.yaml.xz").read_bytes())
    value: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return value


def report_value() -> dict[str, Any]:
    """A small report.json, as data."""
    value: dict[str, Any] = json.loads((REPOSITORY / "tests/report/cases/eight-ranks.json").read_text())
    return value


def _rule(name: str) -> Callable[[], bytes]:
    return (REPOSITORY / "rules" / name).read_bytes


SEEDS: dict[str, Callable[[], bytes]] = {
    "export/rich": lambda: _export(_rich_builder()),
    "export/plain": lambda: _export(TraceBuilder().steps(4)),
    "export/real": _real_export,
    "export/2022": lambda: lzma.decompress((GENERATIONS / "2022.4.2.sqlite.xz").read_bytes()),
    "export/2023": lambda: lzma.decompress((GENERATIONS / "2023.4.4.sqlite.xz").read_bytes()),
    "rank/0": lambda: _rank_of_a_pair(0),
    "rank/1": lambda: _rank_of_a_pair(1),
    "idle/kernelless": _without_kernels,
    "idle/empty": lambda: _export(TraceBuilder().api("cudaMalloc_v3020", 1, 2)),
    "log/bridge": lambda: _log(BRIDGE_RUNS / "0.6.2" / "train.log.xz", 330, 40),
    "log/timers": lambda: _log(BRIDGE_RUNS / "0.3.1-all-timers" / "train.log.xz", 60, 200),
    "log/megatron": lambda: _log(SAMPLES / "wide-nvlink-alltoall.train.log.xz", 420, 40),
    "log/progress": _progress,
    "overrides/plan": lambda: (
        b"# edits\nmodel.moe_token_dispatcher_type=flex 'model.moe_flex_dispatcher_backend=deepep'\n"
        b"model.cuda_graph_scope=[attn,moe_router]\nmodel.recompute_granularity=null\n+model.moe_shared_expert_overlap=true\n"
        b"export CUDA_DEVICE_MAX_CONNECTIONS=32 NVTE_FUSED_ATTN=1\n--moe-permute-fusion\n"
    ),
    "rules/rule": _rule("communication/late-rank.yaml"),
    "rules/cases": _rule("communication/late-rank.cases.yaml"),
    "rules/sources": _rule("sources.yaml"),
    "rules/warning": _rule("warnings/host-time-under-profiler.yaml"),
}
"""Name -> how it is made."""

VALUES: dict[str, Callable[[], Any]] = {
    "snapshot": snapshot_value,
    "config": run_config_value,
    "report": report_value,
}
"""Seeds that are data, written as YAML, JSON or a pickle after they were changed."""


@cache
def seed_value(name: str) -> Any:
    """The data of the seed ``name``; it is shared, so a caller copies it before changing it."""
    return VALUES[name]()
