"""When a verdict is given, when the tool abstains, and which gains are too small for the plan. Fractions of the
step."""

from __future__ import annotations

MINIMUM_RECOVERABLE_FRACTION = 0.1
"""Below this recoverable time no wall is named. Below a tenth the step is lean: a healthy run on two H200s computes for
93% of its step and exposes 7% in exchanges at NVLink speed, and nothing there is worth an edit."""
MINIMUM_MARGIN_FRACTION = 0.02
"""Walls closer to each other than this are not ranked: they swap places between two captures of the same run. Step
times of one run differ by 1-2% from step to step."""
MINIMUM_CULPRIT_TO_WALL_FRACTION = 0.5
"""Of what the largest wall gives back at best, by replay: a late rank that costs less is not what holds the run back.
Twice the micro-batch took 44% and 49% from two host-bound steps whose replays without any host time are shorter by 76%
and 75%: edits give back a little over half of a wall. A late rank that costs less than half of the wall is worth less
than the edit, and is not the first thing to fix."""
MINIMUM_COMPUTE_BUSY_FRACTION = 0.8
"""From this much compute on, the step is compute-bound. If compute kernels run for four fifths of the step, at most one
fifth is left for anything else."""
NOTABLE_WAIT_FRACTION = 0.2
"""Waiting for peers above this is reported. A fifth of the step spent waiting for peers is more than jitter: some other
rank is late, and only its own trace can show why."""
MAXIMUM_WAIT_FRACTION = 0.5
"""Above this much unexplained waiting for peers no wall is named. If half of the step is spent waiting for ranks that
these traces do not explain, the time that this rank could save is not what limits the run."""
MAXIMUM_UNEXPLAINED_IDLE_FRACTION = 0.33
"""Above this much idle time that belongs to no wall no wall is named. Idle time after the launch (start-up, lazy
loading, dependencies) belongs to no wall. A third of the step of such time could change any verdict."""
MAXIMUM_CUDA_GRAPH_FRACTION = 0.1
"""Above this much time in CUDA graphs recorded as a whole no wall is named. A graph that is recorded as a whole hides
compute, communication and gaps alike. With a tenth of the step in such graphs, every other share may be wrong by as
much."""
MAXIMUM_UNCLASSIFIED_FRACTION = 0.25
"""Above this much time in unclassified kernels no wall is named. With a quarter of the step in unclassified kernels,
the largest wall may be one that was not counted."""
MINIMUM_PLAN_GAIN_FRACTION = 0.01
"""An edit whose likely or largest gain is below this is left out of the plan: it cannot be distinguished from the
spread of an unprofiled run."""
NEAR_THRESHOLD_FRACTION = 0.2
"""Of a threshold: a measured value that misses it by less is near it, and so is a gain that a plan needs. Thresholds of
rules are round numbers, and steps of one run differ by some percent. A host-bound run had 9.8% where a rule asks for
10%, and its edit more than doubled the speed. What misses by less than a fifth is shown."""
SAME_GAIN_FRACTION = 0.9
"""Of the largest replayed gain: gains above this count as equal, and the wall of the verdict goes first. Medians of one
unchanged host-bound configuration differed by 10 percent in four runs (710 to 785 ms), so a measurement would not tell
gains closer than that apart."""
REACHABLE_GEMM_EFFICIENCY_FRACTION = 0.8
"""Of the dense peak: what GEMMs reach at best. Large GEMMs of two experts per rank reach 0.8 of the dense peak of an
H200, one after another; none seen so far reach more. The step with its kernels at this peak is the one without the
compute wall."""
LEAST_FREE_MEMORY_FRACTION = 0.1
"""Of the device memory: with less left at the estimated peak a configuration may not fit. Fragments of the allocator,
NCCL's buffers and the CUDA context come on top of the peak; rules ask for as much before they propose a larger
micro-batch."""
