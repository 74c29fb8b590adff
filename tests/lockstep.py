"""Several ranks of one run, simulated in lockstep, each with its own trace: every time in them is known exactly.

A step is ``layers`` times attention (GEMM, flash attention, router GEMM), dispatch, expert GEMMs, combine;
then a gradient all-reduce over the world and the update. A call starts on a rank when that rank arrives and ends on
all members ``transfer`` after the last arrival.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trace_builder import ADAM, GEMM, MEGATRON, POINTWISE, PROCESS, SEND_RECV, TraceBuilder

ATTENTION = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"
EXPERT = "void deep_gemm::m_grouped_gemm_kernel<128>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

US = 1_000
MS = 1_000_000
EPOCH = 1_784_974_272_000_000_000  # 2026-07-25 10:11:12, as the iteration lines of tests/log/examples.py
LAUNCH_AHEAD = 40 * US
COMMUNICATION_STREAM = 20


@dataclass(frozen=True)
class Behaviour:
    """What is odd about a rank."""

    slow: float = 1.0  # every compute kernel takes so many times as long
    shared: float = 1.0  # every second compute kernel takes so many times as long: another process has the GPU
    tokens: float = 1.0  # so many times the expert kernels, on as much larger grids
    persistent: bool = False  # its expert GEMM has one grid for any number of tokens; its activation does not
    starved_ns: int = 0  # before attention of every layer the host is late by this
    blocked_ns: int = 0  # the same, in a synchronizing call
    capture_delay_ns: int = 0  # its profiler starts so much later: the first step waits for it
    clock_ahead_ns: int = 0  # its recorded UTC is wrong by this
    drift: float = 0.0  # its clock gains this share
    host: str = "node0"


@dataclass
class Truth:
    """What must come out: time by bucket and by communication class per (rank, step), in common time."""

    buckets: dict[tuple[int, int], dict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    waits: dict[tuple[int, int], dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    late: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class Run:
    """The simulation: ``now`` is each rank's position in common time."""

    behaviours: Sequence[Behaviour]
    world: int
    group: int
    layers: int = 3
    transfer_ns: int = 300 * US
    builders: list[TraceBuilder] = field(default_factory=list)
    truth: Truth = field(default_factory=Truth)
    now: list[int] = field(default_factory=list)
    step: int = 0
    calls: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        strings: dict[str, int] = {}
        command = f"{MEGATRON} --expert-model-parallel-size {self.group}"
        for rank, odd in enumerate(self.behaviours):
            builder = TraceBuilder(
                process=PROCESS + (rank << 24),
                device=rank,
                strings=strings,
                host=odd.host,
                session_start_ns=EPOCH + odd.capture_delay_ns + odd.clock_ahead_ns,
            )
            builder.launched_as(
                command, RANK=str(rank), WORLD_SIZE=str(self.world), LOCAL_WORLD_SIZE=str(len(self.behaviours))
            )
            self.builders.append(builder)
        self.now = [MS + odd.capture_delay_ns for odd in self.behaviours]

    def own(self, rank: int, at: int) -> int:
        """``at`` (common time) on the clock of ``rank``."""
        since = at - self.behaviours[rank].capture_delay_ns
        return since + round(since * self.behaviours[rank].drift)

    def compute(self, rank: int, name: str, bucket: str, duration: int, grid: int = 1) -> None:
        start = self.now[rank]
        self.calls[rank] += 1
        odd = self.behaviours[rank]
        end = start + round(duration * odd.slow * (odd.shared if self.calls[rank] % 2 else 1.0))
        begin, stop = self.own(rank, start), self.own(rank, end)
        self.builders[rank].kernel(name, begin, stop, launched=max(begin - LAUNCH_AHEAD, 1), grid=grid)
        self.truth.buckets[(rank, self.step)][bucket] += end - start
        self.now[rank] = end

    def idle(self, rank: int, duration: int, *, blocked: bool) -> None:
        """The host is late: the next kernel is launched (40 us early, as all are) that much later."""
        if not duration:
            return
        start, end = self.now[rank], self.now[rank] + duration
        begin, stop = self.own(rank, start), self.own(rank, end)
        if blocked:
            self.builders[rank].api("cudaStreamSynchronize_v3020", begin, stop)
        self.builders[rank].kernel(GEMM, stop, stop + US, launched=stop)
        self.truth.buckets[(rank, self.step)]["host_blocked" if blocked else "launch_starved"] += duration
        self.truth.buckets[(rank, self.step)]["gemm"] += US
        self.now[rank] = end + US

    def collective(self, members: Sequence[int], name: str, kind: str, transfer_ns: int) -> None:
        arrivals = sorted(self.now[rank] for rank in members)
        end = arrivals[-1] + transfer_ns
        for rank in members:
            start = self.now[rank]
            begin, stop = self.own(rank, start), self.own(rank, end)
            self.builders[rank].kernel(
                name, begin, stop, stream=COMMUNICATION_STREAM, launched=max(begin - LAUNCH_AHEAD, 1)
            )
            self.truth.buckets[(rank, self.step)][kind] += end - start
            self.truth.waits[(rank, self.step)][kind] += arrivals[-1] - start
            if start == arrivals[-1] and len(arrivals) > 1:
                self.truth.late[(rank, self.step)] += arrivals[-1] - arrivals[-2]
            self.now[rank] = end

    def run_step(self, crawls: int = 1) -> None:
        """``crawls``: how many times as long the exchanges of the last third of the layers take."""
        everyone = range(len(self.behaviours))
        groups = [list(everyone)[first : first + self.group] for first in range(0, len(self.behaviours), self.group)]
        for layer in range(self.layers):
            slowness = crawls if 3 * layer >= 2 * self.layers else 1
            for rank in everyone:
                odd = self.behaviours[rank]
                self.idle(rank, odd.starved_ns, blocked=False)
                self.idle(rank, odd.blocked_ns, blocked=True)
                self.compute(rank, GEMM, "gemm", 400 * US)
                self.compute(rank, ATTENTION, "attention", 600 * US)
                self.compute(rank, GEMM, "gemm", 100 * US, grid=2)
            self.exchange(groups, slowness)
            for rank in everyone:
                self.run_experts(rank)
            self.exchange(groups, slowness)
        self.collective(everyone, ALL_REDUCE, "all_reduce", 2 * self.transfer_ns)
        for rank in everyone:
            self.compute(rank, ADAM, "optimizer", 200 * US)
        self.step += 1

    def run_experts(self, rank: int) -> None:
        count = round(4 * self.behaviours[rank].tokens)
        if self.behaviours[rank].persistent:
            self.compute(rank, EXPERT, "grouped_gemm", count * 240 * US, grid=132)
            self.compute(rank, POINTWISE, "elementwise", count * 10 * US, grid=count)
            return
        for _ in range(count):
            self.compute(rank, EXPERT, "grouped_gemm", 250 * US, grid=count)

    def exchange(self, groups: Sequence[Sequence[int]], slowness: int = 1) -> None:
        for members in groups:
            self.collective(members, SEND_RECV, "ep_all_to_all", self.transfer_ns * slowness)

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        return [builder.write(folder / f"rank{rank}.sqlite") for rank, builder in enumerate(self.builders)]


def simulate(
    behaviours: Sequence[Behaviour],
    steps: int = 5,
    world: int | None = None,
    group: int | None = None,
    layers: int = 3,
) -> Run:
    """``steps`` steps of ranks that behave so. ``world`` and ``group`` (EP): larger than captured for missing ranks."""
    run = Run(behaviours, world or len(behaviours), group or len(behaviours), layers)
    for _ in range(steps):
        run.run_step()
    return run
