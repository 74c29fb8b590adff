"""The API call that launched each device operation, by the correlation id that both have.

These ids are unique within a process only: two ranks in one capture share them. All operations of a CUDA graph have the
id of the call that launched the graph.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from three_walls.step.step_tables import Launches
from three_walls.trace.api_calls import ApiCalls
from three_walls.trace.schemas import AnyTable, Int64Array

_NEVER = 2**62
_FOUND = ("start_ns", "end_ns", "thread")


def find_launches(operations: AnyTable, api_calls: ApiCalls) -> Launches:
    """The launch of each of ``operations`` (process, correlation): launch_start_ns, launch_end_ns, launch_thread.

    They are null where the call was not recorded. Of several calls with one id, the first launched; of these that start
    together, the first of the export.
    """
    processes = operations["process"].unique().to_list()
    launched = [_sort_by_call(operations, process) for process in processes]
    launches = {name: np.full(operations.height, _NEVER, dtype=np.int64) for name in _FOUND}
    for process, (rows, ids) in zip(processes, launched, strict=True):
        is_first = np.ones(len(ids), dtype=bool)
        is_first[1:] = ids[1:] != ids[:-1]
        if is_first.all():
            _find_first_calls(ids, rows, api_calls, process, launches)
            continue
        _find_first_calls(ids[is_first], rows[is_first], api_calls, process, launches)
        first_row = rows[is_first][np.cumsum(is_first) - 1]
        for found in launches.values():
            found[rows] = found[first_row]
    del launched
    is_missing = pl.Series(launches["start_ns"] == _NEVER)
    # Each is let go as soon as it is copied: there may be millions of operations.
    columns = [pl.Series(f"launch_{name}", launches.pop(name)) for name in _FOUND]
    return pl.DataFrame([column.set(is_missing, None) for column in columns] if is_missing.any() else columns)


def _sort_by_call(operations: pl.DataFrame, process: int) -> tuple[Int64Array, Int64Array]:
    """The rows of a ``process`` whose call is known, by its id, and these ids."""
    is_known = operations.select((pl.col("process") == process) & pl.col("correlation").is_not_null()).to_series()
    ids = operations["correlation"].filter(is_known).to_numpy()
    order = np.argsort(ids, kind="stable")
    return is_known.arg_true().to_numpy()[order], ids[order]


def _find_first_calls(
    ids: Int64Array, rows: Int64Array, api_calls: ApiCalls, process: int, launches: dict[str, Int64Array]
) -> None:
    """Notes in the ``rows`` of ``launches`` the first of the calls with each of ``ids``, which are sorted."""
    for calls in api_calls.of_process(process):
        known = calls.drop_nulls("correlation")
        if known.is_empty():
            continue
        called, start_ns = known["correlation"].to_numpy(), known["start_ns"].to_numpy()
        # Of calls with one id, the first comes first. Operations are looked for among the calls of a part, and not the
        # other way round: they are fewer, and these calls are small enough for the processor's cache.
        order = np.lexsort((start_ns, called))
        called = called[order]
        near = slice(np.searchsorted(ids, called[0]), np.searchsorted(ids, called[-1], "right"))
        place = np.searchsorted(called, ids[near])
        is_launch = called[place] == ids[near]
        row, call = rows[near][is_launch], order[place[is_launch]]
        is_earlier = start_ns[call] < launches["start_ns"][row]
        for name, found in launches.items():
            found[row[is_earlier]] = known[name].to_numpy()[call[is_earlier]]
