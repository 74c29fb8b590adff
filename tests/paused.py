"""A pause of the host put into a capture, so that its truth is known."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

_HOST = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API", "PROFILER_OVERHEAD")


def pause_before(source: Path, target: Path, launch: int, pause_ns: int) -> Path:
    """``source`` with a pause before its ``launch``-th kernel launch: host and device go on later by as much."""
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as database, database:
        device, host = database.execute(
            "SELECT k.start, r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
            "ON r.correlationId = k.correlationId ORDER BY r.start LIMIT 1 OFFSET ?",
            (launch,),
        ).fetchone()
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            from_ns = host if table in _HOST else device
            if {"start", "end"} <= columns:  # a range that is open gets longer, a kernel that runs does not
                bound = "end" if table in _HOST else "start"
                database.execute(f'UPDATE {table} SET "end" = "end" + ? WHERE "{bound}" >= ?', (pause_ns, from_ns))
            if "start" in columns:
                database.execute(f"UPDATE {table} SET start = start + ? WHERE start >= ?", (pause_ns, from_ns))
    return target
