"""Several ranks that each run ``three-walls tune``, as srun starts them: the first decides, the others run their part.

The first rank writes to a file in the tuning's directory, which all hosts share, what is to run now. A counter in it
grows as long as that rank lives. Every other rank runs the same with its own command, and writes when that has ended.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from three_walls.lib.errors import InputError
from three_walls.tuning import journal
from three_walls.tuning.run_trial import GRACE_S, running
from three_walls.tuning.tuned_command import TunedCommand

_FOLDER = "ranks"
_TOLD = "told.json"
_BEAT_S = 1.0
_SILENT_S = 60.0
"""A first rank whose counter stands still for so long is gone."""
_BEGINS_S = 180.0
"""So long it may take to begin: it waits for the ranks of a killed tuning to end."""
_COMES_S = 30.0
"""So long the first rank waits for the others to come."""
_POLL_S = 0.2


class OtherRanks:
    """The other ranks, as the first rank sees them. A context: they end when it does.

    ``count``: how many were started; those that do not come within a while, because a batch script has but one process,
    are not waited for.
    """

    def __init__(self, out: Path, count: int) -> None:
        self._folder, self._ranks = out / _FOLDER, [*range(1, count + 1)]
        self._told: dict[str, Any] = {}
        self._next_look_s = 0.0
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> OtherRanks:
        if self._ranks:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._tell(run=time.time_ns(), over=True)
            self._beats.start()
            self._wait(_COMES_S)
            self._ranks = [rank for rank in self._ranks if self._code_of(rank) is not None]
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(end=True)
        self._done.set()

    def begin(
        self, words: Sequence[str], environment: Mapping[str, str], log: Path, profile: Mapping[str, Any]
    ) -> None:
        """Has them run their commands with ``words`` added. ``profile``: arguments of a capture; empty for none."""
        told = {"words": [*words], "environment": dict(environment), "log": str(log.absolute()), "profile": profile}
        self._tell(**told, run=time.time_ns(), over=False)

    def failure(self) -> str:
        """Why the run is to be ended: one of them failed."""
        if time.monotonic() < self._next_look_s:
            return ""
        self._next_look_s = time.monotonic() + _BEAT_S
        codes = ((rank, self._code_of(rank)) for rank in self._ranks)
        return next((f"rank {rank} ended with exit code {code}" for rank, code in codes if code), "")

    def end(self) -> None:
        """Waits until their parts have ended; those that do not end by themselves are ended."""
        self._tell(**{**self._told, "over": True})
        self._wait(3 * GRACE_S)

    def _wait(self, patience_s: float) -> None:
        until_s = time.monotonic() + patience_s
        while any(self._code_of(rank) is None for rank in self._ranks) and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def _code_of(self, rank: int) -> int | None:
        """The exit code of its part of the present run; None while that goes on."""
        ended = _read(self._folder / str(rank) / "ended.json")
        return ended["code"] if ended.get("run") == self._told.get("run") else None

    def _tell(self, **told: Any) -> None:
        with self._lock:
            self._told = told
            if self._ranks:
                _write(self._folder / _TOLD, {**told, "beat": time.time_ns()})

    def _beat(self) -> None:
        while not self._done.wait(_BEAT_S):
            with self._lock, contextlib.suppress(OSError):  # a file system that hosts share fails now and then
                _write(self._folder / _TOLD, {**self._told, "beat": time.time_ns()})


def follow(out: Path, command: TunedCommand, rank: int) -> None:
    """Runs this rank's part of each run of the tuning in ``out``, until the first rank ends it.

    Raises InputError where that is gone.
    """
    first = Watched(out / _FOLDER / _TOLD)
    with journal.locked(out / _FOLDER / str(rank)) as lock:
        done = None
        while not first.is_gone():
            told = first.told
            if told.get("run") in (None, done):
                time.sleep(_POLL_S)
                continue
            done = told["run"]
            code = _run_part(told, command, rank, lock, first) if "words" in told else 0
            _write(out / _FOLDER / str(rank) / "ended.json", {"run": done, "code": code})
    if not first.told.get("end"):
        raise InputError(f"{out}: rank 0, which decides what is run, is gone, or writes to another directory")


def _run_part(told: Mapping[str, Any], command: TunedCommand, rank: int, lock: int, first: Watched) -> int:
    """The exit code of this rank's part of a run."""
    words, profile, log = told["words"], told["profile"], Path(told["log"])
    line = command.put_in(words)
    if profile:
        line = command.profiled(words, Path(profile["out"]), tuple(profile["ranks"]), profile["steps"])
    log = log.with_name(f"{log.stem}-rank{rank}.log")
    until_s = time.monotonic() + GRACE_S
    with running(line, command.variables(words, told["environment"]), log, lock) as job:
        while job.poll() is None and not first.is_gone() and time.monotonic() < until_s:
            if first.told.get("run") == told["run"] and not first.told["over"]:
                until_s = time.monotonic() + GRACE_S  # once it is over there, it may end by itself here
            time.sleep(_POLL_S)
    return job.returncode


class Watched:
    """What the first rank tells, and whether it still lives."""

    def __init__(self, path: Path) -> None:
        self._path, self._until_s = path, time.monotonic() + _BEGINS_S
        self._beat = _read(path).get("beat")
        self.told: dict[str, Any] = {}
        """Nothing before the counter grew: the file may be left of a tuning that was killed."""

    def is_gone(self) -> bool:
        read = _read(self._path)
        if read.get("beat", self._beat) != self._beat:
            self._beat, self._until_s, self.told = read["beat"], time.monotonic() + _SILENT_S, read
        return bool(self.told.get("end")) or time.monotonic() > self._until_s


def _read(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Takes the place of the file at once, so that no other rank reads a part of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)
