"""From which value on a measured fact counts as known, and what is concluded from the kernels of a step."""

from __future__ import annotations

MAXIMUM_AMBIGUOUS_FRACTION = 0.01
"""Of the step: with more in SendRecv kernels of unknown owner no time of expert parallelism is given, because some of
that time could be its own."""
MAXIMUM_OPEN_FRACTION = 0.05
"""Of the step: with more in transfer of collectives of unknown owner no data- or tensor-parallel time is stated. Rules
on data and tensor parallelism apply from a twentieth of the step on. With that much time of unknown owner, that time
alone could decide whether a rule applies."""

MINIMUM_UNCLASSIFIED_FRACTION = 0.05
"""Of the step: from here on kernels of unknown kind are named. Budget rows of less decide nothing."""

MINIMUM_FULL_RECOMPUTE_FRACTION = 0.8
"""GEMMs of a replay per GEMM of a forward layer from which on recompute is full. It replays all of them; without its
experts or its attention, which selective recompute replays, a layer lacks two GEMMs of six or more."""
MINIMUM_REPLAYED_LAYER_RATIO = 2.5
"""GEMMs of a backward layer per GEMM of a forward layer from which on work other than attention is replayed. A backward
pass runs two GEMMs for each one of the forward pass, and three where an expert layer is replayed."""
MINIMUM_OVERLAP_CALLS = 3
"""Calls of a GEMM, of those that ran alone and of those concurrent with communication, needed to compare their
medians."""
MINIMUM_CONCURRENT_FRACTION = 0.5
"""Of a GEMM's time: concurrent communication from which on the call counts as concurrent. A call that ran alone had
none at all."""
MAXIMUM_ALONE_SPREAD_RATIO = 1.25
"""Ninth over first decile of the durations of GEMM calls that ran alone: above it they are taken to be of several
sizes. Expert GEMMs vary by a few percent with routing, GEMMs of different sizes by half and more."""
MINIMUM_OUTLIER_STEPS = 5
"""Kept steps that a rank needs before one of them is reported as an outlier. With fewer kept steps of a rank a median
does not show what is usual."""
MINIMUM_OUTLIER_DEVIATIONS = 3
"""Median absolute deviations above the median of the rank's steps from which on a step is an outlier: the usual bound
for a robust one."""
MINIMUM_OUTLIER_EXCESS_FRACTION = 0.05
"""Of the median step: a step that is longer by less is no outlier. Steps of one run differ by a few percent."""

CHECKPOINT_BYTES = 256 << 20
"""Copied to the host in one step and not in the others: from here on a step is taken to save a checkpoint. Norms,
losses and token counts are some kilobytes; the shard of a rank is gigabytes."""

MINIMUM_LINK_FRACTION = 0.25
"""Of a link's bandwidth: communication that stays below it does not use the link. On H200s the fastest token exchange
of a run reaches 0.66 to 0.78 of NVLink's bandwidth in one direction (NCCL), or 0.49 (DeepEP); with peer-to-peer
disabled 0.06 to 0.07. PCIe, which carries what goes through host memory, has 0.14 of it on Hopper and 0.25 on a Grace
superchip."""

LOADER_BOUND_FRACTION = 0.02
"""Of the step: with less waiting for its data loader a thread is taken not to wait at all. Asking a loader that has the
batch ready took 0.01 to 0.15 percent of the step in 37 real captures."""

MINIMUM_OWN_SAMPLES_FRACTION = 0.5
"""Of the time of a part of the step: with less of it in samples of hardware counters that lie wholly within that part,
nothing is said about it: they would describe its longest kernels alone. Samples of 0.1 ms lay so for 0.85 of the GEMMs
of a dense model, for 0.38 of those of a small MoE model, whose long GEMMs are not those of its experts, and for 0.6 of
token exchanges."""
