"""With which neighbour each exchange of a stage is, under Megatron's non-interleaved 1F1B schedule.

From ``forward_backward_pipelining_without_interleaving`` (megatron/core/pipeline_parallel/schedules.py): stage s of p
with m micro-batches runs w = min(p - s - 1, m) forward passes ahead (receive from the previous stage, send to the
next), then m - w rounds of one forward and one backward pass (exchange with the next, then with the previous), then w
backward passes (receive from the next, send to the previous). Every call of ``P2PCommunicator`` is with one neighbour.
Batched it is one kernel; else a call that sends and receives is two.
"""

from __future__ import annotations

PREVIOUS, NEXT = "previous", "next"


def list_exchanges(stage: int, stages: int, micro_batches: int, *, batched: bool = True) -> list[str]:
    """The neighbour of every exchange of ``stage`` (from 0) in one step, in order."""
    ahead = min(stages - stage - 1, micro_batches)
    rounds = micro_batches - ahead
    both = 1 if batched else 2
    order = [PREVIOUS, NEXT] * ahead
    if rounds:
        order += [PREVIOUS]
        order += ([NEXT] * both + [PREVIOUS] * both) * (rounds - 1)
        order += [NEXT] * both + [PREVIOUS]
    order += [NEXT, PREVIOUS] * ahead
    absent = {PREVIOUS} if stage == 0 else {NEXT} if stage == stages - 1 else set()
    return [neighbour for neighbour in order if neighbour not in absent]
