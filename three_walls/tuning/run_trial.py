"""Runs a job once as a child of this process, watches its log for progress, and reads the step from it."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from three_walls.lib.measurement import NS_PER_MS
from three_walls.lib.text import show_control_characters
from three_walls.log.collect_log import Collector
from three_walls.log.log_lines import log_grammar
from three_walls.log.read_lines import strip_prefixes
from three_walls.log.read_log import read_logs, read_text
from three_walls.log.steady_steps import (
    MINIMUM_STEP_TOLERANCE_FRACTION,
    TOLERANCE_IN_DEVIATIONS,
    Role,
    classify_iterations,
    usual_batch_size,
)
from three_walls.log.training_log import LogIteration, OutOfMemory, TrainingLog
from three_walls.tuning import supervise_job
from three_walls.tuning.trials import HUNG_LATE, OUT_OF_MEMORY, MemoryUse

GRACE_S = 10.0
"""What the ranks have to end after SIGTERM, before they are killed."""
LEAST_STEADY = 5
"""Steady iterations of a run that tell its step."""
_MOST_LONG = 0.4
"""Of the steps after the warm-up: more that are long are a part of the job. On an H200 every other one took 620 ms in
place of 530. Where a fifth is long by chance, one run of 14 steps in 20 has more than this, and one in six more than a
quarter."""
_POLL_S = 0.1
_MOST_POLL_S = 2.0
"""The logs of many ranks are looked at less often."""
_PROGRESS = re.compile(rb"iteration +(\d+) */ *\d+")
_DONE = "done"
_KILLED = 128 + signal.SIGKILL
_MIDDLE_ERROR = 1.08
"""Standard error of the mean of the middle half over that of the mean of all, of normal values."""
_ERROR_LINE = re.compile(
    r"(?:\[?[\w./ :-]*\]:? ?)?((?!Exception ignored)(?:[\w.]+\.)?\w*(?<!ChildFailed)(?:Error|Exception)\b.*)|"
    r".*(Watchdog caught collective operation timeout.*)"
)
_RANK_ENDED = re.compile(r"\bexitcode +: (-?\d+) \(pid")
"""In what torchrun prints at the end."""
_MOST_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run is ended."""

    quiet_s: float
    """The longest time without a new iteration, the start of the job included."""
    run_s: float
    """The longest run."""
    iterations: int
    """So many are enough: a job that then does not end by itself is ended, and has not failed."""
    overran: str = ""
    """Why it has, if it goes on past them: it was told to end, and did not hear."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    steps_ms: tuple[float, ...]
    """The steady steps; empty where there are too few."""
    failure: str
    """Why it counts as failed; empty where it does not."""
    wall_s: float
    longest_quiet_s: float
    is_cut_off: bool = False
    """Whether its supervisor was killed, which says nothing of the job."""
    global_batch_size: int | None = None
    """The samples of a step; None where its log does not say."""
    iterations: int | None = None
    """How many it printed; None where a caller runs the job."""
    memory: MemoryUse | None = None
    """As :class:`TriedChoice` has it, and the limit."""
    limit_bytes: int | None = None
    loss: float | None = None
    """The mean over the second half of the iterations; None where they print none."""

    @property
    def step_s(self) -> float | None:
        """The mean of the middle half of the usual steps; None of a run that failed.

        Where every other step is longer, a median is the length of one kind or the other.
        """
        if self.failure:
            return None
        usual = sorted(_leave_out_long(self.steps_ms))
        cut = len(usual) // 4
        return statistics.fmean(usual[cut : len(usual) - cut]) / 1000

    @property
    def error(self) -> float:
        """Standard error of that as a share of it, by the means of neighbours: steps that alternate are no noise."""
        if self.failure or len(self.steps_ms) < LEAST_STEADY:
            return 0.0
        usual = _leave_out_long(self.steps_ms)
        if len(usual) < LEAST_STEADY:  # so few vary too little to tell, and the run may still warm up
            usual = list(self.steps_ms)
        means = [(step + following) / 2 for step, following in itertools.pairwise(usual)]
        deviation = statistics.stdev(means) / statistics.fmean(means)
        return _MIDDLE_ERROR * deviation * math.sqrt(2 / (len(usual) - 2))


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, lock: int
) -> Iterator[subprocess.Popen[bytes]]:
    """``command`` with all output in ``log``. Whatever happens here, even SIGKILL, no process of it is left.

    ``lock``: a locked file, which stays locked until that is so.
    """
    liveness, held = os.pipe()
    supervise_job.adopt_orphans()  # of a supervisor that was killed
    with log.open("wb") as output:
        words = [sys.executable, "-I", "-S", supervise_job.__file__, str(liveness), str(lock), str(GRACE_S), *command]
        job = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            pass_fds=[liveness, lock],
            start_new_session=True,  # signals of the terminal reach this process alone
        )
    os.close(liveness)
    try:
        yield job
    finally:
        os.close(held)
        if job.wait() < 0:
            supervise_job.end_descendants(GRACE_S, {})


class Others(Protocol):
    """Ranks that run their parts of the job elsewhere."""

    def failure(self) -> str:
        """Why the run has to be ended; empty while all is well."""

    def end(self) -> None:
        """Waits until their parts have ended."""


def run_job(
    command: Sequence[str], environment: Mapping[str, str], log: Path, limits: Limits, lock: int, others: Others
) -> Ended:
    """Runs ``command`` once; its log, and those of the other ranks next to it, tell how it went."""
    started_s = time.monotonic()
    with running(command, environment, log, lock) as job:
        ended_by_us, longest_quiet_s = _watch(job, log, limits, others)
    others.end()
    wall_s = time.monotonic() - started_s
    logs = _list_logs(log)
    read = read_logs(logs)
    steps_ms = steady_steps(read.iterations, read)
    printed = len({line.iteration for line in read.iterations})
    has_all = ended_by_us == _DONE or (printed >= limits.iterations and not ended_by_us)
    is_over = has_all and not _find_exhausted(read)
    is_well = not (job.returncode or ended_by_us or _count_steady(read, steps_ms))
    failure = "" if is_over or is_well else _explain(job.returncode, ended_by_us, read, logs)
    if is_well and printed < limits.iterations:
        failure = _find_hidden(read, logs)
    is_cut_off = job.returncode < 0
    failure = failure or _count_steady(read, steps_ms)
    ended = _read_ended(read, steps_ms, failure, wall_s, limits.iterations)
    return replace(ended, longest_quiet_s=longest_quiet_s, is_cut_off=is_cut_off, iterations=printed)


def _read_ended(log: TrainingLog, steps_ms: tuple[float, ...], failure: str, wall_s: float, most: int | None) -> Ended:
    """What ``log`` says of a run. ``most``: so many iterations count, of a job that goes on."""
    return Ended(
        steps_ms,
        failure,
        wall_s,
        longest_quiet_s=0.0,
        global_batch_size=usual_batch_size(log.iterations),
        memory=_read_memory(log),
        limit_bytes=_find_limit(log),
        loss=_read_loss(log.iterations[:most]),
    )


def _read_loss(iterations: Sequence[LogIteration]) -> float | None:
    losses = [line.loss for line in iterations[len(iterations) // 2 :] if line.loss is not None]
    return statistics.fmean(losses) if losses and all(map(math.isfinite, losses)) else None


def _list_logs(log: Path) -> list[Path]:
    return [log, *sorted(log.parent.glob(f"{log.stem}-rank*.log"))]


def _watch(job: subprocess.Popen[bytes], log: Path, limits: Limits, others: Others) -> tuple[str, float]:
    """Waits for the end; returns why the job has to be ended, if it has, and the longest time without an iteration."""
    started_s = last_s = time.monotonic()
    longest_s, seen, reached = 0.0, set[bytes](), dict[Path, int]()
    while job.poll() is None:
        logs = _list_logs(log)
        new = {number for path in logs for number in _read_progress(path, reached)}
        now_s = time.monotonic()
        longest_s = max(longest_s, now_s - last_s)
        if new - seen:
            last_s, seen = now_s, seen | new
        if len(seen) >= limits.iterations and now_s - last_s > min(GRACE_S, limits.quiet_s):
            return _DONE, longest_s
        numbers = [int(number) for number in seen]
        if numbers and max(numbers) - min(numbers) > limits.iterations:
            return limits.overran or _DONE, longest_s
        if now_s - last_s > limits.quiet_s:
            when = f"{HUNG_LATE} {len(seen)} iterations: no more" if seen else "it hung: no iteration"
            return f"{when} for {limits.quiet_s:.0f} s", longest_s
        if now_s - started_s > limits.run_s:
            return f"it took longer than {limits.run_s:.0f} s", longest_s
        if failure := others.failure():
            return _DONE if len(seen) >= limits.iterations else failure, longest_s
        time.sleep(min(_MOST_POLL_S, _POLL_S * len(logs)))
    return "", longest_s


def _read_progress(path: Path, reached: dict[Path, int]) -> list[bytes]:
    """The iterations in what was added to ``path`` since ``reached``, where the last whole line ends."""
    with path.open("rb") as output:
        output.seek(reached.get(path, 0))
        lines = output.read().rpartition(b"\n")[0]
        reached[path] = reached.get(path, 0) + len(lines)
    return [match[1] for match in _PROGRESS.finditer(lines)]


def _explain(code: int, ended_by_us: str, log: TrainingLog, logs: Sequence[Path]) -> str:
    """Why the run failed; empty where nothing but the number of its iterations says that it did."""
    if exhausted := _find_exhausted(log):
        return exhausted
    error = next(filter(None, map(_find_error, logs)), "")
    if ended_by_us:
        return f"{ended_by_us}; its log says {error}" if error else ended_by_us
    if error or not code:
        return error
    if ended := _list_rank_codes(logs):
        return _describe_code("a rank", ended[-1])
    return f"{_describe_code('it', code)}{'' if log.iterations else _find_last_line(logs[0])}"


def _find_hidden(log: TrainingLog, logs: Sequence[Path]) -> str:
    """Why a run broke off whose exit code says nothing, as behind a pipe; empty where it had no more iterations."""
    errors = (_find_error(path, is_last=True) for path in logs if path.name == log.iterations[-1].file_name)
    codes = _list_rank_codes(logs)
    return _find_exhausted(log) or next(errors, "") or (_describe_code("a rank", codes[-1]) if codes else "")


def _list_rank_codes(logs: Sequence[Path]) -> list[int]:
    """The exit codes that torchrun prints, of the rank that failed first last."""
    return [int(match[1]) for path in logs for line in _read_end(path) if (match := _RANK_ENDED.search(line))]


def _describe_code(who: str, code: int) -> str:
    code = code if code >= 0 else 128 - code
    name = f" ({signal.Signals(code - 128).name})" if code - 128 in {*signal.Signals} else ""
    why = ", as by a host whose memory is full" if code == _KILLED else ""
    return f"{who} ended with exit code {code}{name}{why}"


def _find_exhausted(log: TrainingLog) -> str:
    """What says that the device's memory did not suffice; empty where nothing does."""
    if log.ooms:
        return f"{OUT_OF_MEMORY}{f' in {log.ooms[0].raised_in}' if log.ooms[0].raised_in else ''}"
    said = next((event.text for event in log.events if event.kind == "memory_exhausted"), "")
    return f"{OUT_OF_MEMORY}: {said}" if said else ""


def _read_memory(log: TrainingLog) -> MemoryUse | None:
    """Of the rank that printed the largest peak; None where the peak may lack what the optimizer keeps.

    An optimizer allocates its state at the end of the first step, after that step's peak.
    """
    uses = [
        MemoryUse(each.allocated_bytes, each.max_allocated_bytes)
        for each in log.memory
        if each.allocated_bytes and each.max_allocated_bytes and each.after_iterations_count != 1
    ]
    return max(uses, key=lambda use: use.peak_bytes, default=None)


def _find_limit(log: TrainingLog) -> int | None:
    """How much PyTorch may have: as it says, or what it held when it was refused more, and what the device had left."""
    return max((each.allowed_bytes or _count_held(each) for each in log.ooms if each.allocated_bytes), default=None)


def _count_held(oom: OutOfMemory) -> int:
    held, left = (oom.allocated_bytes or 0) + (oom.reserved_unallocated_bytes or 0), oom.free_bytes or 0
    return held + left if left < oom.requested_bytes else held  # else it was no lack, but a limit that the job set


def _count_steady(log: TrainingLog, steps_ms: Sequence[float]) -> str:
    """Why too few iterations tell the step; empty where enough do."""
    if len(steps_ms) >= LEAST_STEADY:
        return ""
    if not log.iterations:
        return (
            'its log has no line of an iteration as Megatron prints it ("iteration 5/ 100 | consumed samples: ... | '
            'elapsed time per iteration (ms): ..."): a job that logs to a file alone has to print the lines, too'
        )
    lost = sum(bool(line.nan_count or line.skipped_count) for line in log.iterations)
    why = "more --iterations, or a line of each, would tell its step"
    if lost:
        why = f"of {len(log.iterations)} that it prints {lost} skip the update or have a loss that is NaN"
    return f"its log has {len(steps_ms)} steady iterations, fewer than {LEAST_STEADY}: {why}"


def _find_error(path: Path, is_last: bool = False) -> str:
    """The first line of the log's end that names an error: after the last iteration, if any does; or only there."""
    lines = _read_end(path)
    last = max((place for place, line in enumerate(lines) if _PROGRESS.search(line.encode())), default=0)
    before = [] if is_last else lines[:last]
    texts = (strip_prefixes(line, log_grammar()).text for line in (*lines[last:], *before))
    found = next((match[1] or match[2] for text in texts if (match := _ERROR_LINE.match(text))), "")
    return show_control_characters(found, kept="")[:_MOST_REASON_CHARACTERS]


def _find_last_line(path: Path) -> str:
    """What a command printed last, which may be why it did not start."""
    last = next((line for line in reversed(_read_end(path)) if any(map(str.isalnum, line))), "")
    return f": {show_control_characters(last, kept='')[:_MOST_REASON_CHARACTERS]}" if last else ""


def _read_end(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 20)))
        return file.read().decode("utf-8", "replace").splitlines()


def steady_steps(iterations: Sequence[LogIteration], log: TrainingLog | None = None) -> tuple[float, ...]:
    """The steps after the warm-up, in milliseconds; the last ones of a run that warms up nearly to its end."""
    roles = classify_iterations(iterations, log.events if log else (), None)
    timed = [(line.elapsed_ns / NS_PER_MS, role) for line, role in zip(iterations, roles, strict=True)]
    steady = tuple(step_ms for step_ms, role in timed if role in {Role.STEADY, Role.OUTLIER})
    later = tuple(step_ms for step_ms, role in timed[1:] if role in {Role.STEADY, Role.OUTLIER, Role.WARM_UP})
    return steady if len(steady) >= LEAST_STEADY or len(later) < LEAST_STEADY else later[-LEAST_STEADY:]


def _leave_out_long(steps_ms: Sequence[float]) -> list[float]:
    """``steps_ms`` without those that stand out above the short ones, unless these are many."""
    ordered = sorted(steps_ms)
    usual_ms = ordered[int(0.3 * len(ordered))]  # of the short ones, also where two of three are long
    deviation_ms = 1.4826 * statistics.median(abs(step - usual_ms) for step in ordered[: (len(ordered) + 1) // 2])
    most_ms = usual_ms + max(MINIMUM_STEP_TOLERANCE_FRACTION * usual_ms, TOLERANCE_IN_DEVIATIONS * deviation_ms)
    usual = [step for step in steps_ms if step <= most_ms]
    return usual if len(usual) >= (1 - _MOST_LONG) * len(steps_ms) else list(steps_ms)


def ended_of(result: object, wall_s: float) -> Ended:
    """What a caller's own run gives: a path to a log, its text, or steps in seconds. Nothing else is a run."""
    if isinstance(result, Path) or (isinstance(result, str) and "\n" not in result and Path(result).is_file()):
        log = read_logs([Path(result)])
    elif isinstance(result, str):
        collector = Collector()
        read_text([result.encode()], collector, "log")
        log = collector.result(("log",))
    elif isinstance(result, Iterable) and (steps := [round(float(step) * 1e9) for step in result]):
        if min(steps) <= 0:
            return Ended((), f"it gave a step of {min(steps) / 1e9:g} s", wall_s, 0.0)
        log = TrainingLog(iterations=tuple(LogIteration(number, step) for number, step in enumerate(steps, start=1)))
    else:
        return Ended((), "it gave no log", wall_s, 0.0)
    steps_ms = steady_steps(log.iterations, log)
    failure = _find_exhausted(log) or _count_steady(log, steps_ms)
    return _read_ended(log, steps_ms, failure, wall_s, None)
