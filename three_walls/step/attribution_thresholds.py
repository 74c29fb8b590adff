"""What the attribution of a step assumes, and when a rank is reported as a straggler."""

from __future__ import annotations

# Gaps without compute.

MAXIMUM_LAUNCH_LATENCY_NS = 50_000
"""From the end of a launch call to the start of an operation that nothing delays. A launched operation that nothing
delays begins within a few microseconds; what exceeds this is something else."""
MAXIMUM_RETURN_NS = 50_000
"""From the end of an operation to the return of the call that waited for it. A synchronizing call returns some ten
microseconds after what it waits for has ended; a later return means that it waited for something else."""
MAXIMUM_EVENT_LATENCY_NS = 20_000
"""From the end of an operation to the start of the next one on a stream that waited for it. A stream continues a few
microseconds after the event it waits for; if it continues later, something else delayed it."""
FOLLOWED_EVENTS = 4
"""Events in a row that are followed from a waiting operation to its producers. Dispatch, expert and combine streams
need two."""

# Transfer and waiting, estimated from one rank.

READY_QUANTILE = 0.1
"""Of the durations of a kind of call, other than token exchanges: the quantile that counts as its transfer, because so
many calls are taken to have found all peers ready. Calls of one kind may have several sizes, so the shortest alone says
little; a quartile would have called waiting transfer. Of exchanges of tokens, which have one size, the shortest
counts."""
MINIMUM_CALLS = 8
"""Calls of a kind per rank that are needed for that quantile. With fewer it means nothing."""
MAXIMUM_CONTROL_NS = 50_000
"""Transfer of a call that carries next to nothing. Kilobytes arrive within this time on any link of a cluster; over
NVLink they took 6 us where all ranks were captured."""
MINIMUM_SMALL_EXCHANGE_RATIO = 3.0
"""Jump in the sorted durations that separates exchanges of counts and probabilities (kilobytes) from exchanges of
tokens (megabytes) on one stream. They take 0.08 to 0.3 ms over NVLink, 0.14 to 3.7 ms through host memory, in the
bundled traces."""
MAXIMUM_SMALL_EXCHANGE_NS = 500_000
"""An exchange of counts takes longer than this only if it waits."""

# Stragglers.

MINIMUM_LATE_FRACTION = 0.05
"""Of the step: a rank that delays its group by less is not a straggler. Of two healthy H200s in one host, one delays
the other by 3.2% of every step; with four it is 0 to 3.4%. A rank that delays its group by less than a twentieth of the
step, beyond what its peers do, cannot be distinguished from that."""
MINIMUM_LATE_LAUNCHES_FRACTION = 0.2
"""Of the step: a rank with late launches is not to be fixed first below this, where no log shows what of them the
profiler caused. The profiler slows launches, on one rank more than on another: of two healthy H200s under it, one
launches later than the other by 5 to 15% of the step in three runs. Without a log nothing distinguishes that from a
slow host."""
MINIMUM_BLAME_FRACTION = 0.5
"""Of a wait: a rank is blamed for it only if it arrived last for more than this part."""
MINIMUM_CAUSE_FRACTION = 0.5
"""Of the time by which a rank was late: a cause is named only if it explains more than this part."""
MINIMUM_SLOW_OUTSIDE_FRACTION = 0.2
"""Of the excess compute: from this part outside of the experts on, a slow GPU is the cause and not imbalance. A slow
GPU is slow in every part of a layer; imbalance shows only between dispatch and combine. With less than a fifth of the
excess outside of the experts, the cause is imbalance."""
MOST_SLOW_RANKS_COMPARED = 16
"""Ranks that are slow together: of more, only the slowest are each compared with the others. Each takes a pass over the
calls of all ranks: 0.2 s with 1,024 of them. A run with more slow ranks has one cause for all, such as a power cap on a
rack, which the slowest show."""

# Slow GPUs, by the kernels that repeat.

MINIMUM_REPEATED_CALLS = 4
"""Calls of a kernel in a step from which it counts as repeated. A mean over its fastest call says little of a kernel
that runs once or twice; layers and micro-batches repeat most."""
MINIMUM_REPEATED_KERNEL_NS = 20_000
"""Kernels that take less on average do not count as repeated: those of a few microseconds vary by a fifth on a GPU that
runs nothing else."""
MINIMUM_REPEATED_FRACTION = 0.2
"""Of the compute: with less of it in kernels that repeat, a few of them decide, and their spread is not known. In
Megatron's steps on H200s they are a third to nine tenths of it."""
SHARED_GPU_SPREAD_RATIO = 1.25
"""A slow rank's spread of repeated kernels to its peers': from here on another process is likely on its GPU. Repeated
kernels take 1.00 to 1.03 times their fastest call on the healthy ranks of 17 captures on H200s, and 1.9 to 2.0 times on
a GPU on which another process ran matrix products; a process that takes a fifth of the GPU stretches them by a
quarter."""
MINIMUM_SHARED_GPU_SPREAD_RATIO = 1.4
"""Mean over fastest call of repeated kernels: a rank above it does not represent the run, also where no call shows it
late. Halfway, as a ratio, between 1.03 on healthy ranks and 1.9 on a shared GPU; the warning shared-gpu begins there
too."""
EVEN_SPREAD_RATIO = 1.1
"""The same: up to here all kernels are slower alike, as with lower clocks. At a lower clock every call is slower by the
same factor, so that the spread stays that of the peers: those of one run differ by no more than 0.02."""
MINIMUM_SLOW_KERNELS_RATIO = 1.1
"""Time for the same kernels over that of the usual rank: a rank above it is slow. The same kernels take 0.99 to 1.01
times as long on each of the healthy H200s of three four-rank runs as on the median one, and 1.6 times (mean 2.07) on a
GPU that another process used too."""

# Pauses of the host.

MINIMUM_PAUSE_NS = 5_000_000
"""A shorter gap between launches is Python at work: hosts are silent for up to 4 ms in layers. In optimizers it is up
to 11 ms, which the bounds below leave out."""
MINIMUM_PAUSE_FRACTION = 0.02
"""Of the step: a shorter gap is no pause, because a replay of the step may be off by more."""
MINIMUM_PAUSE_DEVIATIONS = 10
"""Median absolute deviations above the median gap of a place from which on a gap stands out. Gaps have a long tail: in
four runs 6 to 14 percent of them are beyond three, the usual bound, and 1 to 2 percent beyond ten, nearly all short."""
MINIMUM_PAUSE_RATIO = 2
"""Of the median gap of a place, likewise: of few gaps the deviation may be 0."""
MINIMUM_REGULAR_PAUSE_FRACTION = 0.05
"""Of the step: shorter gaps of a place are together no pause where it has the like in every step. Optimizers in Python
take up to 4 percent without a CUDA call in real steps, and 2.4 without a range."""
MOST_LONG_GAPS = 256
"""Gaps that are looked into, the longest first. Most hold a synchronizing call, which takes milliseconds to see; for
the others ranges are read from the trace."""
