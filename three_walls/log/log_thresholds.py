"""When an iteration of the log is steady, a log of another run, a rank slow, and memory short."""

from __future__ import annotations

# Steady iterations.

DISTURBING_EVENTS = frozenset({"evaluation", "checkpoint"})
"""Kinds of lines (log-lines.yaml) after whose iteration the next one is not steady: it follows an evaluation, or runs
while an asynchronous checkpoint is still being written."""
PLATEAU_FRACTION = 0.5
"""Of the undisturbed iterations: the last part, whose median is the length of a steady iteration. Warm-up is over in
the later half of a log, however long it took."""
MINIMUM_STEP_TOLERANCE_FRACTION = 0.03
"""Of the median iteration: one that differs by less is steady. Unprofiled iterations of one run lie within 1-2% of each
other (measured on H200s); one that differs by more is warm-up at the start of a run and an outlier later."""
TOLERANCE_IN_DEVIATIONS = 5.0
"""Times the run's own median deviation: the tolerance of a run that jitters more. Runs with more jitter (full
recompute: 870 to 1059 ms) get five times their own median deviation, so that their spread is reported instead of cut
off."""
MINIMUM_STEADY_COUNT = 2
"""Steady iterations needed for a spread: a single one has none, so nothing shows that it is typical."""
MINIMUM_ITERATIONS_PER_CAPTURED_STEP = 4
"""Iterations in the log per captured step from which on their median counts as unprofiled. Where the log does not show
which iterations were profiled, their median is still that of unprofiled ones if at most a quarter of them can have been
profiled."""
CAPTURED_STEP_TOLERANCE_FRACTION = 0.05
"""Of a captured step: an iteration of the log that differs by less may be this step. The log measures from the end of
one iteration to the end of the next, the trace between optimizer phases. Where the host decides, it reaches them at
other times in every step; profiled iterations are longer than others by 5% or more."""
CAPTURED_STEPS_TOLERANCE_FRACTION = 0.01
"""The same of all captured steps together, in which only the first and the last boundary differ. On two H200s the
lengths of the same iterations differ by 0.4% at most."""
OTHER_STEPS_TOLERANCE_FRACTION = 0.03
"""Of all captured steps together: if the log's profiled iterations differ by more, or one of them by more than the
tolerance of a step, the log is of another run. Of 30 captured runs their own iterations differ by 0.9% at most together
and by 2.8% alone; logs of other runs in their place by 6 to 60%, but for one of a run as long."""
MINIMUM_PERTURBATION_RATIO = 1.05
"""Traced step to unprofiled iteration: above it the profiler made the step longer. Unprofiled iterations of a run
differ by up to 5% (501 to 493 ms on four H200s); a traced step that is longer than that was slowed down by the
profiler."""

# A log of another run: it states another value of one of these than the trace's command line.

COMPARED_LAYOUT_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
"""Sizes of the parallel layout, which a log prints in lines of their own."""
COMPARED_ARGUMENTS = ("num_layers", "hidden_size", "seq_length", "micro_batch_size", "global_batch_size")
"""Config keys of the model and the batch, which a log has in Megatron-LM's arguments block."""
MINIMUM_STEP_RATIO = 0.8
"""Traced step to unprofiled iteration: below it the log is of another run. The profiler makes no step shorter (0.97 of
the unprofiled median at least, in twelve real captures): a traced step that is a fifth shorter belongs to another run,
model or batch size."""
MAXIMUM_STEP_RATIO = 3.0
"""Traced step to unprofiled iteration: above it the log is of another run. The profiler doubled the step of a run with
7,700 kernels in 377 ms; a factor of three has not been seen and means another run, model or batch size."""

LEAST_OF_FREE_HOST_RATIO = 0.9
"""Unprofiled iteration to the traced step if the host took no time: below it the log is of another run. Kernels of two
runs on one GPU model differ by a few percent; of 30 captured runs with logs none was below 1.01."""

# Slow ranks and short memory.

SLOW_RANK_RATIO = 1.1
"""A rank's own work to that of the typical rank: above it the rank is slow. Healthy H200s of one host delay each other
by up to 3.4% of a step; a rank whose own work takes a tenth longer than that of the typical rank is clearly outside of
that range."""
SLOW_RANK_PRINTS_FRACTION = 0.5
"""Of the timer prints: the part in which a rank has to be slow. A rank that is slow in less than half of the prints
takes turns with others, which is jitter."""
NEAR_LIMIT_FRACTION = 0.9
"""Of the device's memory, allocated: above it memory is short. In addition to what PyTorch allocates, the CUDA context,
NCCL and libraries held 3.6 GiB of 140 in a run that ran out of memory, and 6 GiB were lost to fragmentation: 7%.
Routing that shifts by some percent uses up the rest."""
RESERVED_LIMIT_FRACTION = 0.95
"""Of the device's memory, reserved: above it memory is short. Memory outside of PyTorch's allocator (3.6 GiB of 140)
leaves nothing more to reserve: the next new block makes the allocator release its cache."""
