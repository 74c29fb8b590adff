"""A pipeline of several stages under 1F1B, simulated call by call: every wait in an exchange is known exactly.

A forward pass is flash attention and a GEMM, a backward pass a GEMM and attention's backward. An exchange
starts on a rank when that rank comes to it and ends on both ``transfer_ns`` after the second came.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep import ALL_REDUCE, ATTENTION, EPOCH, MS, US
from trace_builder import ADAM, GEMM, PROCESS, SEND_RECV, TraceBuilder

ATTENTION_BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_kernel<Flash_bwd_kernel_traits<128>>"
COMMAND = (
    "pretrain_gpt.py --bf16 --num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1"
)
EXCHANGE_STREAM = 30


@dataclass
class PipelineRun:
    """``stages`` ranks, one per stage. ``truth``: waiting in exchanges by (rank, step)."""

    stages: int
    micro_batches: int
    forward_ns: int = 2 * MS
    backward_ns: int = 4 * MS
    transfer_ns: int = 100 * US
    streams_by_neighbour: bool = False
    extra_layers_on: int | None = None  # this stage's passes take twice as long
    backward_attention: str = ATTENTION_BACKWARD
    replays: bool = False  # attention runs forward again before every backward pass, for half of a forward pass
    exchange_first: bool = False  # an exchange of nothing opens the step on every stage: no schedule's order
    truth: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    builders: list[TraceBuilder] = field(default_factory=list)
    now: list[int] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        strings: dict[str, int] = {}
        for rank in range(self.stages):
            builder = TraceBuilder(
                process=PROCESS + (rank << 24), device=rank, strings=strings, session_start_ns=EPOCH
            ).launched_as(
                f"{COMMAND} --pipeline-model-parallel-size {self.stages} --global-batch-size {self.micro_batches}",
                RANK=str(rank),
                WORLD_SIZE=str(self.stages),
                LOCAL_WORLD_SIZE=str(self.stages),
            )
            self.builders.append(builder)
        self.now = [MS] * self.stages

    def run_step(self) -> None:
        """Every rank goes through its program; one that comes to an exchange waits for the other to come to it."""
        programs = [self._program(rank) for rank in range(self.stages)]
        arrived: dict[tuple[int, int], int] = {}
        met: dict[tuple[int, int], int] = defaultdict(int)
        place = [0] * self.stages
        while any(at < len(program) for at, program in zip(place, programs, strict=True)):
            for rank, program in enumerate(programs):
                while place[rank] < len(program):
                    what = program[place[rank]]
                    if what in ("F", "B"):
                        self._compute(rank, what)
                    elif not self._meet(rank, int(what), arrived, met):
                        break
                    place[rank] += 1
        self._update()
        self.step += 1

    def _program(self, rank: int) -> list[str]:
        """F and B for a pass, the peer's number for an exchange with it."""
        ahead = min(self.stages - rank - 1, self.micro_batches)
        before, after = str(rank - 1), str(rank + 1)
        program = [before, "F", after] * ahead
        for number in range(self.micro_batches - ahead):
            program += [before, "F", after, "B"] if number == 0 else ["F", after, "B"]
            program += [before]
        program += [after, "B", before] * ahead
        program = [what for what in program if what in ("F", "B") or 0 <= int(what) < self.stages]
        return (
            [*([after] if rank == 0 else [before] if rank == 1 else []), *program] if self.exchange_first else program
        )

    def _compute(self, rank: int, what: str) -> None:
        longer = 2 if rank == self.extra_layers_on else 1
        half = longer * (self.forward_ns if what == "F" else self.backward_ns) // 2
        if what == "B" and self.replays:
            self._kernel(rank, ATTENTION, longer * self.forward_ns // 2)
        for name in (ATTENTION, GEMM) if what == "F" else (GEMM, self.backward_attention):
            self._kernel(rank, name, half)

    def _kernel(self, rank: int, name: str, duration: int) -> None:
        start, end = self.now[rank], self.now[rank] + duration
        self.builders[rank].kernel(name, start, end, launched=max(start - 40 * US, 1))
        self.now[rank] = end

    def _meet(self, rank: int, peer: int, arrived: dict[tuple[int, int], int], met: dict[tuple[int, int], int]) -> bool:
        """Whether the exchange of ``rank`` with ``peer`` is over; the second to come ends it for both."""
        if met[(rank, peer)]:
            met[(rank, peer)] -= 1
            return True
        arrived.setdefault((rank, peer), self.now[rank])
        if (peer, rank) not in arrived:
            return False
        starts = {rank: arrived.pop((rank, peer)), peer: arrived.pop((peer, rank))}
        end = max(starts.values()) + self.transfer_ns
        for member, start in starts.items():
            other = peer if member == rank else rank
            stream = EXCHANGE_STREAM + (10 * (other > member) if self.streams_by_neighbour else 0)
            self.builders[member].kernel(SEND_RECV, start, end, stream=stream, launched=max(start - 40 * US, 1))
            self.truth[(member, self.step)] += max(starts.values()) - start
            self.now[member] = end
        met[(peer, rank)] += 1
        return True

    def _update(self) -> None:
        end = max(self.now) + 200 * US
        for rank, builder in enumerate(self.builders):
            builder.kernel(ALL_REDUCE, self.now[rank], end, stream=40, launched=max(self.now[rank] - 40 * US, 1))
            builder.kernel(ADAM, end, end + 500 * US, launched=end - 40 * US)
            self.now[rank] = end + 500 * US

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        return [builder.write(folder / f"rank{rank}.sqlite") for rank, builder in enumerate(self.builders)]


def simulate_pipeline(
    stages: int, micro_batches: int, steps: int = 4, odd: Callable[[PipelineRun], None] = lambda _: None
) -> PipelineRun:
    """``steps`` steps of a pipeline; ``odd`` may change the run before it starts."""
    run = PipelineRun(stages, micro_batches)
    odd(run)
    for _ in range(steps):
        run.run_step()
    return run
