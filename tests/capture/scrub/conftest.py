"""An export with a secret in every place that has one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trace_builder import MEGATRON, TraceBuilder

SECRETS = {
    "variable": "hunter2hunter2",
    "token": "hf_Ab3dEf6hIj9kLm2nOp5q",
    "unlisted": "postgres://bob:pw@db.example/x",
    "argument": "wandb-0f1e2d3c4b5a69788796",
    "path": "/home/alice/secret-project/data",
    "save": "/scratch/alice/checkpoints",
    "stdout": "step 1 loss 3.25 from alice",
    "range": "eval of /home/alice/secret-project",
    "range_token": "hf_Zz9yXx8wVv7uTt6sRr5q",
    "kernel": "/home/alice/kernels/fused.cu",
    "process": "alices-notebook",
    "host": "dgx-alice-07",
    "user": "alice.liddell",
    "neighbour": "neighbour-s3cr3t-0a1b2c3d4e",
    "json": "payload of alice's job",
    "new_table": "something a newer version adds",
    "in_a_number": "text in a number's place",
}


def plant(path: Path, host: str = SECRETS["host"], **variables: str) -> Path:
    """Four steps whose export contains each of SECRETS where Nsight Systems puts such things."""
    builder = TraceBuilder(host=host, session_start_ns=1_700_000_000_000_000_000).steps(4)
    builder.kernel(f"void fused<lambda at {SECRETS['kernel']}:12>(float *)", 700, 710)
    builder.nvtx("training_step_7", 1, 20).nvtx(
        "aten::mm, seq = 3, op_id = 12, sizes = [[1, 2], []]", 2, 3, inline=True
    )
    builder.nvtx(SECRETS["range"], 3, 4).nvtx(SECRETS["range_token"], 4, 5, inline=True)
    builder.nvtx(f"run of {SECRETS['user']}", 5, 6)
    words = f"{MEGATRON} --save {SECRETS['save']} --wandb-api-key {SECRETS['argument']} --num-workers 2"
    builder.launched_as(
        f"/home/alice/bin/python {words}",
        WANDB_API_KEY=SECRETS["variable"],
        HF_TOKEN=SECRETS["token"],
        DATABASE_URL=SECRETS["unlisted"],
        USER=SECRETS["user"],
        NCCL_TOPO_FILE=SECRETS["path"],
        NCCL_DEBUG="INFO",
        RANK="0",
        **variables,
    )
    builder.metadata.append(("PROCESS_0:WORKING_DIR", SECRETS["save"]))
    block = f"HOME=/home/alice\0AWS_SECRET_ACCESS_KEY={SECRETS['neighbour']}\0LANG=C"
    builder.string(block)
    builder.string(SECRETS["stdout"])
    builder.write(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', ?)", (block.replace("\0", ";"),)
        )
        database.execute("CREATE TABLE PROCESSES (globalPid, pid, name)")
        database.execute("INSERT INTO PROCESSES VALUES (1, 1, ?)", (SECRETS["process"],))
        database.execute("CREATE TABLE ANALYSIS_FILE (id, filename, content, globalPid)")
        database.execute("INSERT INTO ANALYSIS_FILE VALUES (1, '/tmp/out', ?, 1)", (SECRETS["stdout"],))
        database.execute("CREATE TABLE NEW_IN_2030 (note)")
        database.execute("INSERT INTO NEW_IN_2030 VALUES (?)", (SECRETS["new_table"],))
        database.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN jsonText TEXT")
        database.execute("UPDATE NVTX_EVENTS SET jsonText = ?", (SECRETS["json"],))
        database.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp, severity, text)")
        database.execute(
            "INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 1, ?)", (f"see {SECRETS['path']}/stdout.log for output",)
        )
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = ?", (SECRETS["in_a_number"],))
    return path


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    return plant(tmp_path / "rank0.sqlite")
