"""What a replay of a step takes for granted."""

from __future__ import annotations

SILENT_THREAD_NS = 20_000
"""Silence of a thread after which another thread's call may be what it waited for. A thread that launches work makes a
CUDA call every few microseconds; shorter pauses are its own."""
LONG_ALLOCATION_NS = 50_000
"""Duration from which on cudaMalloc or cudaFree waited for the device. Else they take a few microseconds."""
BLOCKING_LAUNCHES_FRACTION = 0.5
"""Of the launches: where more of them return after their kernels, launches block. Of those that wait for nothing 1 to
6 percent do, on slow hosts."""
LONG_LAUNCH_NS = 500_000
"""Duration from which on a launch may have waited for a place in the launch queue. Launches take 5 to 20 us, and those
that waited 0.7 to 74 ms (H200, tokens over sockets)."""
LONGEST_ALLOCATION_TAIL_NS = 100_000
"""From the end of the awaited operation to the return of such a call: what is left of it after the device has caught
up."""
SHORTEST_WAIT_NS = 2_000
"""Duration of a synchronizing call that waits for nothing, as measured on an idle H200."""
USUAL_STREAM_GAP_NS = 1_500
"""Longest gap between two operations of a stream that wait for nothing else. In a longer one the second operation
waited for something."""
LEAST_STREAM_GAP_NS = 1_000
"""What is taken for a longer gap once nothing else holds the operation back."""
LEAST_KERNEL_NS = 1_500
"""No kernel takes less: what one that does next to nothing takes on Hopper, as fills of a few bytes in every trace."""
LONGEST_EVENT_GAP_NS = 2_000
"""Longest gap between the end of an operation and the start of one on a stream that waited for its event."""
LAUNCH_LATENCY_QUANTILE = 0.05
"""Of the times from the start of a launch call to the start of its operation: the one of launches that wait for
nothing. Most of them wait for the device; the fastest twentieth does not."""
LEAST_LAUNCH_LATENCY_NS = 1_500
"""No launch was seen to be faster on Hopper."""
LONGEST_LATENCY_RATIO = 4
"""Of that latency: the longest one on an idle stream (large arguments, a cold cache). What is longer has another
cause."""
LATE_AFTER_LAUNCH_NS = 6_000
"""An operation on an idle stream that starts later than this after its launch was held back by something."""
LATE_AFTER_STREAM_NS = 2_500
"""The same after the end of the operation before it on its stream."""
LATE_AFTER_EVENT_NS = 3_000
"""The same after the end of an operation whose event its stream waited for."""
LEAST_HELD_NS = 20_000
"""Delay of an operation on a shared GPU from which on another process is taken to have held it up. That process has the
GPU for a time slice, a fraction of a millisecond to some milliseconds; shorter delays have other causes."""
RESOURCE_REACH_NS = 60_000
"""How long ago an operation may have ended whose multiprocessors another one waited for."""
RESOURCE_LAST_WAVE_FRACTION = 0.7
"""Of an operation's duration, before its end: from then on another one may take its multiprocessors. Blocks of a kernel
leave wave by wave: seen from 30 percent of its duration on."""
RESOURCE_LAST_WAVE_NS = 20_000
"""The same for short operations, which have one wave only: the next one may start any time after the last blocks
have."""
CATEGORIES_OUTSIDE_LAYERS = ("data_parallel", "reduce_scatter", "optimizer", "pipeline_p2p")
"""Launched at any time between the operations of layers, and part of none."""
CATEGORIES_BEFORE_MICRO_BATCH = ("all_reduce", "optimizer", "copy_d2h_pinned", "broadcast")
"""What a step launches before its first micro-batch: it checks and updates parameters, and reads a norm or a flag."""
MOST_RANKS_READ = 4
"""With more ranks the ranges of one rank alone are read, because that takes longer than its replay. The others have its
labels where they launch the same."""
RESYNCHRONIZE_LAUNCHES = 200
"""How far ahead two ranks' launches are searched for a place from which they agree again. Experts that got no tokens
launch nothing: two ranks differ by some dozens of launches, and a layer has some hundreds."""
AGREEING_LAUNCHES = 4
"""How many launches in a row have to agree there. So many are the same by chance in few places of a layer."""
STEADY_FRACTION = 0.002
"""Of the step: replays that differ by less are steady. It is below the error of an unchanged replay (0.1 to 0.7
percent), and what threads and streams leave to the next step settles in two or three replays."""
MOST_STEADY_REPLAYS = 4
"""Replays of a step as it follows itself. A step that is not steady by then alternates; its last replay counts."""
MOST_PACED_REPLAYS = 6
"""Tries to find how long a thread waits for its batches in a changed step: each is off by what the device still had to
do while the thread waited. The last one counts."""
WAIT_REPLAYS = 2
"""Replays in which the waiting for ranks that were not captured follows the step: each shrinks with the other. A third
replay changes less than a percent."""
WAITS_OF_A_HOST_RATIO = 3.0
"""What hosts of ranks that were not captured hold the captured ones up by, as a multiple of what its own host costs a
captured rank. Of 44 runs of which one rank was taken, 40 edits that shorten the work of hosts are off by 4.9 points on
average, by 6.4 where half of each wait shrinks with that work, by 7.1 with none and 7.8 with all; 1.5 to 6 times are
the same."""
PROFILER_COSTS_COUNT = 9
"""Costs of the profiler, from 0 to twice the largest, for which the step is replayed, to find the one that meets the
log's step. Between two of them it is read off a straight line, which is off by less than runs differ."""
SHORTEST_SEGMENT_FRACTION = 0.002
"""Of the step: a shorter part of the critical path is joined to its short neighbours in the report, because a chart of
500 columns cannot show it."""
MOST_SITES = 8
"""Places that synchronize whose removal is replayed, those with most time first: each replay takes as long as one of
the plan's some ninety."""
MOST_COMPARED_STEPS = 6
"""Kept steps whose unchanged replays are compared with the capture. Building the graph of a step takes longer than
attributing it. Steps of a run repeat the same work, so their errors differ less than those of runs; the shortest and
the longest are among the compared ones."""
MAXIMUM_REPLAY_ERROR_FRACTION = 0.03
"""Of the step: with a larger error nothing is predicted. The error of an unchanged replay bounds how well its
dependencies are known. Eight real runs stay below 0.7 percent; published replays of training steps reach 3.3 percent on
average."""
LEAST_STEP_NS = 1_000_000
"""Nothing is predicted of a shorter step. No training step is shorter; launch latencies of microseconds mean nothing in
one."""
MINIMUM_LAUNCHED_FRACTION = 0.95
"""Of the operations: with fewer recorded launches nothing is predicted. An operation without its launch call starts
whenever its stream allows, as if the host were never late."""
MAXIMUM_ENVELOPE_FRACTION = 0.1
"""Of the step, in CUDA graphs recorded as a whole: with more nothing is predicted, because nothing in them can be
changed or replayed."""
LEAST_PROFILER_COST_RATIO = 0.85
"""Of the profiler's cost that the capture's own ranges and calls show: the least that it may have been."""
LIKELY_PROFILER_COST_RATIO = 1.0
"""The likely one. Of 62 real runs with logs whose step depends on it, half lie between 0.87 and 1.26, with a median of
1.03. With and without the profiler in turn one model paid 0.9 to 1.4 times the estimate (H200, FP8 and BF16)."""
MOST_PROFILER_COST_RATIO = 1.3
"""The most: the upper quartile of these runs."""
LOGGED_PROFILER_COST_RATIO = 1.5
"""The likely one of a run with a log, where the step is then within ``SAME_STEP_FRACTION`` of the log's. The replayed
step is often shorter than the log's with it. But of 431 measured edits the gains are off by 4.9 points, and by 5.1 with
the cost that gives the log's step: not all that a step is longer by than its replay is the host."""
HOST_DRIFT_FRACTION = 0.1
"""By how much the host of another run of the same configuration is faster or slower. Medians of one unchanged
host-bound base differed by 5 to 15 percent from their middle within minutes (632, 776, 687 and 607 ms; 1,184, 1,286 and
1,597 ms)."""
LINK_DRIFT_FRACTION = 0.05
"""The same of transfers between ranks. Medians of one unchanged base that exchanges tokens over sockets differed by 8
percent from their middle (1,831, 1,609, 1,695 and 1,568 ms)."""
LEAST_LOADER_WAIT_FRACTION = 0.02
"""Of the step: a thread that waits so long for batches waits for its loader, and what is left of that after an edit is
not known. Asking a loader that has the batch ready took 0.01 to 0.15 percent in 37 real captures."""
LOADER_DRIFT_FRACTION = 0.05
"""The same of a step that waits for its data loader. Medians of one unchanged base differed by 9 percent from their
middle (394 to 472 ms)."""
STEP_DRIFT_FRACTION = 0.015
"""By how much a step that the device decides is shorter or longer in another run. Medians of one unchanged device-bound
base (474, 477 and 480 ms; 489 and 475 ms; 522 and 537 ms)."""
SAME_STEP_FRACTION = 0.08
"""Of the step: by so much a replayed step may differ from the log's when the profiler's cost is fitted. Two runs of one
configuration differ by up to 2 percent where the device decides, and by 5 to 15 percent where hosts do; 3, 5 and 8
percent give the same gains within 0.1 points, 1 percent worse ones."""
LEAST_HOST_FRACTION = 0.15
"""Of a host segment: what is left at least without the profiler. Some of every pause is the program's own work,
whatever the estimate of the profiler's cost says."""
LEAST_SILENCE_NS = 1_000_000
"""Time without a range or a call of a thread that is no work of the operators around it. In what fusions take over 99%
of the gaps between two events are shorter than 0.2 ms (six host-bound captures); longer ones are pauses of the process.
"""
POWER_EXPONENT = 0.5
"""How the clock of a device at its power limit falls with the time in which it computes. Power is proportional to the
clock and to the square of the voltage, which rises with the clock. Within captured steps kernels of one shape took up
to 0.5% longer for each percent that the device had computed more in the 80 ms before (12 of 15 device-bound runs), and
0.01% in host-bound ones."""
LIMITED_BUSY_FRACTION = 0.85
"""Of the step: a device that computes less of it has power left. It was chosen knowing what micro-batches measured. Of
devices that computed 87 to 92% of it they gained 0.8 to 3.9 points less than without a limit (four models); of one
that computed 82%, twice the micro-batch gained as much or more."""
CLOCK_ROUNDS = 4
"""Rounds in which a slower clock and the idle time that it leaves agree: each changes half of what the last one did."""
