"""Makes a long trace, or traces of many ranks, from a real one.

    python benchmarks/inflate.py BASE OUT.sqlite --steps 50
    python benchmarks/inflate.py BASE OUT_DIRECTORY --ranks 64 --straggler 5

The last kept step of BASE is repeated: its operations, API calls, NVTX ranges and what else happened meanwhile, later
every time, with fresh correlation ids and NVTX texts. What came before and after stays, so the first and the last step
are as imperfect as in BASE. Every rank is a copy with its own RANK, host and device, whose NCCL kernels start a little
later than in BASE and end when they ended there. The same arguments give the same rows in the same order.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click

sys.path.insert(0, str(Path(__file__).parent.parent))

from three_walls import analyze
from three_walls.lib.errors import UsageError
from three_walls.trace.trace_files import plain_sqlite

_PREFIX = "CUPTI_ACTIVITY_KIND_"
OPERATIONS = (f"{_PREFIX}KERNEL", f"{_PREFIX}MEMCPY", f"{_PREFIX}MEMSET", f"{_PREFIX}GRAPH_TRACE")
CALLS = f"{_PREFIX}RUNTIME"
OF_ONE_CALL = (f"{_PREFIX}SYNCHRONIZATION", f"{_PREFIX}CUDA_EVENT", "CUDA_GPU_MEMORY_USAGE_EVENTS")
"""Tables whose rows belong to an API call by its correlation id."""
OF_THE_HOST = (CALLS, "NVTX_EVENTS", "PROFILER_OVERHEAD", f"{_PREFIX}OVERHEAD", "OSRT_API")
NUMBERED = ("correlationId", "eventSyncId", "rangeId")
"""Columns with ids that are new for every event."""

_TURN = "\x01"
"""Stands for the number of the repetition in the template of a text."""
_NEW_NUMBER = re.compile(r"((?:seq|op_id) = |[\[( ]\()([1-9]\d*)")
_STEP_NUMBER = re.compile(r"(?<=training_step_)\d+")
_DIGITS = 8
GPUS_PER_HOST = 8
_LATE_FRACTION, _STRAGGLER_LATE_FRACTION = 0.02, 0.95
"""Of the length of an NCCL kernel: by up to how much a rank is late to it, and by how much a straggler."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a trace, in ns: its operations start from ``start_ns`` on, its host work from ``host_start_ns`` on."""

    start_ns: int
    end_ns: int
    host_start_ns: int
    host_end_ns: int

    @property
    def length_ns(self) -> int:
        """From this step to its repetition."""
        return self.end_ns - self.start_ns


class Database:
    """An export that is changed, and the columns of its tables."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        for setting in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "cache_size=-65536"):
            self.connection.execute(f"PRAGMA {setting}")
        self.connection.execute("BEGIN")
        names = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.columns = {
            name: [column[1] for column in self.connection.execute(f'PRAGMA table_info("{name}")')] for (name,) in names
        }

    def run(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        """The rows of a statement."""
        return self.connection.execute(sql, parameters).fetchall()

    def number(self, sql: str, *parameters: object) -> int | None:
        """The only value of a statement."""
        value = self.connection.execute(sql, parameters).fetchone()[0]
        return None if value is None else int(value)

    def present(self, tables: Sequence[str], *columns: str) -> list[str]:
        """Those of ``tables`` that exist and have all of ``columns``."""
        return [table for table in tables if table in self.columns and {*columns} <= {*self.columns[table]}]


def find_step(trace: Path) -> tuple[int, int]:
    """When the last kept step of the only rank in ``trace`` starts and ends on the device, in ns.

    Raises UsageError for a trace of several ranks.
    """
    ranks = analyze(trace).ranks
    if len(ranks) != 1:
        raise UsageError(f"{trace}: expected a trace of one rank, found {len(ranks)} ranks")
    kept = [step for step in ranks[0].steps if step.kept]
    return kept[-1].start_ns, kept[-1].end_ns


def repeat_step(database: Database, bounds: tuple[int, int], steps: int) -> None:
    """Has the step between ``bounds`` in ``database`` ``steps`` times, instead of once."""
    step = _place_calls(database, bounds)
    database.run("CREATE TEMP TABLE turns (turn INTEGER PRIMARY KEY)")
    database.connection.executemany("INSERT INTO turns VALUES (?)", [(turn,) for turn in range(1, steps)])
    id_stride = 1 + (database.number(f"SELECT max(correlationId) FROM {CALLS}") or 0)
    _write_templates(database, step)
    for table in database.present(OPERATIONS, "start"):
        _repeat_rows(database, table, (f"start >= {step.start_ns}", f"start >= {step.end_ns}"), step, id_stride)
    in_host = f"start >= {step.host_start_ns}", f"start >= {step.host_end_ns}"
    of_call = "(SELECT place FROM places p WHERE p.correlation = e.correlationId)"
    for table in database.present(OF_ONE_CALL, "correlationId"):
        _repeat_rows(database, table, (f"{of_call} >= 1", f"{of_call} = 2"), step, id_stride)
    for table in database.present(OF_THE_HOST, "start"):
        where = (f"{of_call} >= 1", f"{of_call} = 2") if table == CALLS else in_host
        _repeat_rows(database, table, where, step, id_stride)
    if "ANALYSIS_DETAILS" in database.columns:
        longer_ns = (steps - 1) * step.length_ns
        database.run("UPDATE ANALYSIS_DETAILS SET duration = duration + ?, stopTime = stopTime + ?", *[longer_ns] * 2)


def _place_calls(database: Database, bounds: tuple[int, int]) -> Step:
    """Fills the table ``places``: whether each API call comes before (0), in (1) or after (2) the step.

    A call belongs where the operation that it launched is, another one where it lies among the launches of the step.
    """
    start_ns, end_ns = bounds
    database.run("CREATE TEMP TABLE places (correlation INTEGER PRIMARY KEY, place INTEGER)")
    for table in database.present(OPERATIONS, "correlationId"):
        database.run(
            f"INSERT OR IGNORE INTO places SELECT correlationId, (start >= {start_ns}) + (start >= {end_ns}) "
            f"FROM {table} WHERE correlationId IS NOT NULL"
        )
    first_ns = database.number(
        f"SELECT min(start) FROM {CALLS} JOIN places ON correlation = correlationId WHERE place = 1"
    )
    host_start_ns = start_ns if first_ns is None else first_ns
    host_start_ns, host_end_ns = _widen_to_range(database, host_start_ns, host_start_ns + end_ns - start_ns)
    database.run(
        f"INSERT OR IGNORE INTO places SELECT correlationId, (start >= {host_start_ns}) + (start >= {host_end_ns}) "
        f"FROM {CALLS} WHERE correlationId IS NOT NULL"
    )
    return Step(start_ns, end_ns, host_start_ns, host_end_ns)


def _widen_to_range(database: Database, start_ns: int, end_ns: int) -> tuple[int, int]:
    """The host's step from the start of its range ``training_step_N`` to that of the next, where there are such."""
    if not database.present(["NVTX_EVENTS"], "text", "textId"):
        return start_ns, end_ns
    starts = database.run(
        "SELECT start FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId "
        "WHERE instr(coalesce(text, value), 'training_step_') ORDER BY start"
    )
    before = [int(str(start)) for (start,) in starts if int(str(start)) <= start_ns]
    if not before:
        return start_ns, end_ns
    after = [int(str(start)) for (start,) in starts if int(str(start)) > start_ns]
    return before[-1], min([*after[:1], before[-1] + end_ns - start_ns])


def _write_templates(database: Database, step: Step) -> None:
    """Fills the table ``templates`` (place, number, text) with the texts of the step that differ in every repetition.

    ``number`` is the row in NVTX_EVENTS for a text that stands there, the id for one in StringIds.
    """
    database.run("CREATE TEMP TABLE templates (place TEXT, number INTEGER, text TEXT, PRIMARY KEY (place, number))")
    within = f"n.start >= {step.host_start_ns} AND n.start < {step.host_end_ns}"
    wanted = {
        "row": ("text", f"SELECT n.rowid, text FROM NVTX_EVENTS n WHERE text IS NOT NULL AND {within}"),
        "id": ("textId", f"SELECT DISTINCT id, value FROM NVTX_EVENTS n JOIN StringIds ON id = textId WHERE {within}"),
    }
    for place, (column, query) in wanted.items():
        if database.present(["NVTX_EVENTS"], column):
            found = [(place, number, _write_template(str(text))) for number, text in database.run(query)]
            database.connection.executemany("INSERT INTO templates VALUES (?, ?, ?)", [row for row in found if row[2]])
    next_id = (database.number("SELECT max(id) FROM StringIds") or 0) + 1
    database.run(
        "INSERT INTO StringIds SELECT number + turn * ?, replace(text, ?, turn) "
        "FROM turns CROSS JOIN templates WHERE place = 'id'",
        next_id,
        _TURN,
    )
    database.run("CREATE TEMP TABLE text_stride AS SELECT ? AS stride", next_id)


def _write_template(text: str) -> str | None:
    """``text`` with the number of the repetition before each number that is new in every step; None without any.

    The numbers of emit_nvtx (seq, op_id, the operators that made the inputs) get further digits in front of them.
    """
    numbered = _NEW_NUMBER.sub(lambda found: f"{found[1]}{_TURN}{found[2]:0>{_DIGITS}}", text)
    numbered = _STEP_NUMBER.sub(lambda found: f"{_TURN}{found[0]:0>{_DIGITS}}", numbered)
    return None if numbered == text else numbered


def _repeat_rows(database: Database, table: str, where: tuple[str, str], step: Step, id_stride: int) -> None:
    """Repeats the rows of the step in ``table`` for each of the ``turns``; later rows are moved behind them.

    ``where`` selects the rows from the start of the step on, and those after its end. ``id_stride``: between the ids of
    an event and of its repetition.
    """
    since, after = where
    columns = database.columns[table]
    moved = []
    for column in columns:
        value = f'e."{column}"'
        if column in ("start", "end"):
            value = f"{value} + turn * {step.length_ns}"
            if table == "NVTX_EVENTS" and column == "end":  # a range must not reach into the next repetition
                value = f'min(e."end", {step.host_start_ns + step.length_ns}) + turn * {step.length_ns}'
        elif column in NUMBERED:
            value = f"{value} + turn * {id_stride}"
        elif table == "NVTX_EVENTS" and column == "text":
            value = f"coalesce(replace(row_text.text, '{_TURN}', turn), {value})"
        elif table == "NVTX_EVENTS" and column == "textId":
            value = f"{value} + (id_text.number IS NOT NULL) * turn * (SELECT stride FROM text_stride)"
        moved.append(value)
    joined = ""
    if table == "NVTX_EVENTS":
        joined = (
            "LEFT JOIN templates row_text ON row_text.place = 'row' AND row_text.number = e.number_of_row "
            "LEFT JOIN templates id_text ON id_text.place = 'id' AND id_text.number = e.textId"
        )
    database.run("DROP TABLE IF EXISTS in_step")
    database.run("DROP TABLE IF EXISTS later")
    from_start = f"FROM {table} e WHERE {since}"
    database.run(f"CREATE TEMP TABLE in_step AS SELECT rowid AS number_of_row, * {from_start} AND NOT ({after})")
    database.run(f"CREATE TEMP TABLE later AS SELECT * {from_start} AND ({after})")
    database.run(f"DELETE FROM {table} WHERE rowid IN (SELECT e.rowid {from_start} AND ({after}))")
    database.run(f"INSERT INTO {table} SELECT {', '.join(moved)} FROM turns CROSS JOIN in_step e {joined}")
    shift_ns = f"(SELECT count(*) FROM turns) * {step.length_ns}"
    times = [f'"{name}" + {shift_ns}' if name in ("start", "end") else f'"{name}"' for name in columns]
    database.run(f"INSERT INTO {table} SELECT {', '.join(times)} FROM later")


def make_rank(base: Path, out: Path, rank: int, ranks: int, is_straggler: bool) -> None:
    """Writes rank ``rank`` of ``ranks``: a copy of ``base`` with its own RANK, host and device."""
    shutil.copyfile(base, out)
    database = Database(out)
    with closing(database.connection):
        local = rank % GPUS_PER_HOST
        variables = {
            "RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": min(ranks, GPUS_PER_HOST),
        }
        for name, value in variables.items():
            database.run(
                "UPDATE META_DATA_CAPTURE SET value = ? WHERE name GLOB '*ENVIRONMENT_VARIABLE' AND value GLOB ?",
                f'{name}="{value}"',
                f"{name}=*",
            )
        host = f"node{rank // GPUS_PER_HOST:04d}"
        database.run("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", host)
        for table in database.present([*OPERATIONS, *OF_ONE_CALL, "TARGET_INFO_CUDA_CONTEXT_INFO"], "deviceId"):
            database.run(f"UPDATE {table} SET deviceId = ?", local)
        _come_late(database, Random(rank), _STRAGGLER_LATE_FRACTION if is_straggler else _LATE_FRACTION)
        database.run("COMMIT")


def _come_late(database: Database, random: Random, late_fraction: float) -> None:
    """Starts every NCCL kernel later, by up to ``late_fraction`` of its length and at least by half as much.

    What ran before it takes as much longer.
    """
    kernels = OPERATIONS[0]
    rows: list[tuple[int, int, int, int]] = database.connection.execute(
        f"SELECT k.rowid, k.start, k.end, value GLOB 'nccl*' FROM {kernels} k JOIN StringIds ON id = shortName "
        "ORDER BY k.start, k.end, k.rowid"
    ).fetchall()
    later, longer = [], []
    for (before, _, before_end_ns, _), (row, start_ns, end_ns, is_nccl) in pairwise(rows):
        if is_nccl and before_end_ns <= start_ns:
            late_ns = int((end_ns - start_ns) * late_fraction * random.uniform(0.5, 1))
            later.append((late_ns, row))
            longer.append((late_ns, before))
    database.connection.executemany(f"UPDATE {kernels} SET start = start + ? WHERE rowid = ?", later)
    database.connection.executemany(f'UPDATE {kernels} SET "end" = "end" + ? WHERE rowid = ?', longer)


@click.command()
@click.argument("base", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(1), default=1, help="How often the last kept step is there.")
@click.option("--ranks", type=click.IntRange(1), help="Write this many ranks into the directory OUT.")
@click.option("--straggler", type=click.IntRange(0), help="This rank is late to every collective.")
@click.option("--without", help="Leave out NVTX ranges whose text matches this GLOB of SQLite, such as 'aten::*'.")
def main(base: Path, out: Path, steps: int, ranks: int | None, straggler: int | None, without: str | None) -> None:
    """Writes OUT: a trace with many steps, or a directory with a trace per rank."""
    if ranks is None:
        inflate(base, out, steps, without)
        return
    with TemporaryDirectory(dir=out.parent) as folder:
        every = Path(folder) / "every.sqlite"
        inflate(base, every, steps, without)
        out.mkdir(exist_ok=True)
        for rank in range(ranks):
            make_rank(every, out / f"rank{rank:04d}.sqlite", rank, ranks, rank == straggler)


def inflate(base: Path, out: Path, steps: int, without: str | None = None) -> None:
    """Writes ``base`` to ``out``, with its last kept step ``steps`` times, without texts that match ``without``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f"{out.name}.part")
    with plain_sqlite(base) as plain:
        shutil.copyfile(plain, part)
    bounds = find_step(base) if steps > 1 else (0, 0)
    database = Database(part)
    with closing(database.connection):
        if without:
            database.run("DELETE FROM NVTX_EVENTS WHERE text GLOB ?", without)
        if steps > 1:
            repeat_step(database, bounds, steps)
        database.run("COMMIT")
    part.replace(out)


if __name__ == "__main__":
    main()
