"""Runs ``three-walls analyze`` and prints on stderr what every stage of it takes.

python benchmarks/stages.py TRACE... [OPTION...]     # those of analyze
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

_START = "start"
_STAGES_OF_FILES = {
    "reading": "reading inputs",
    "exporting": "exporting reports",
    "surveying": "surveying the ranks",
    "surveyed": "surveying the ranks",
}
"""First word of a stage with a file's name or a number in it -> the stage of all files."""


@dataclass(slots=True)
class _Stage:
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_bytes: int = 0


class Timings:
    """CPU and wall seconds of stages, those of child processes included, and the largest memory that each one saw.

    The stage ``start`` lasts from the start of the process, so it has the imports in it. CPU seconds are those of all
    threads. Where the system cannot forget a peak of memory, a stage has the largest until its end.
    """

    def __init__(self) -> None:
        self._stages = {_START: _Stage()}
        self._current, self._cpu_s, self._wall_s = _START, 0.0, _process_start_s()

    def begin(self, stage: str) -> None:
        """Ends the stage before; one with the name of an earlier stage goes on with that."""
        now_s, cpu_s = time.monotonic(), _cpu_s()
        ended = self._stages[self._current]
        ended.cpu_s += cpu_s - self._cpu_s
        ended.wall_s += now_s - self._wall_s
        ended.peak_bytes = max(ended.peak_bytes, _take_peak_bytes())
        self._cpu_s, self._wall_s = cpu_s, now_s
        self._current = _STAGES_OF_FILES.get(stage.partition(" ")[0], stage)
        self._stages.setdefault(self._current, _Stage())

    def render(self) -> str:
        """The table: a line for every stage in the order of their beginnings, then the total."""
        self.begin(self._current)
        stages = self._stages.values()
        total = _Stage(
            sum(stage.cpu_s for stage in stages),
            sum(stage.wall_s for stage in stages),
            max(stage.peak_bytes for stage in stages),
        )
        lines = [f"{'stage':<45} {'CPU s':>8} {'wall s':>8} {'peak MB':>8}"]
        for name, stage in [*self._stages.items(), ("total", total)]:
            lines.append(f"{name:<45} {stage.cpu_s:>8.2f} {stage.wall_s:>8.2f} {stage.peak_bytes / 1e6:>8.0f}")
        return "\n".join(lines)


def _process_start_s() -> float:
    """When this process started, on the monotonic clock; now where the system does not record it."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - age_s
    return time.monotonic()


def _cpu_s() -> float:
    """Of this process and the children it has waited for; os.times() counts in steps of 10 ms."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _take_peak_bytes() -> int:
    """The largest memory of this process since the last call, or that of its largest child if that is larger."""
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak_bytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
        Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak
    return max(peak_bytes, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit_bytes)


def main() -> None:
    """Runs the command as a user does, and is told of its stages in place of the terminal."""
    from three_walls.__main__ import main as run
    from three_walls.cli import analyze

    timings = Timings()
    analyze.show_progress = lambda: nullcontext(timings.begin)
    atexit.register(lambda: sys.stderr.write(f"{timings.render()}\n"))
    sys.argv.insert(1, "analyze")
    run()


if __name__ == "__main__":
    main()
