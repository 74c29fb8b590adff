"""Where steps begin and end, what surrounds a softmax, how full a launch queue gets, and when starts are skewed."""

from __future__ import annotations

MAXIMUM_OPERATIONS_BETWEEN_GEMMS = 24
"""Operations around a softmax that count as unfused attention. Between the two GEMMs around it the backward pass of
Megatron's local attention runs about ten operations; a longer stretch holds other work too."""
SAME_OPTIMIZER_PHASE_FRACTION = 0.1
"""Of a step's model work: clusters of optimizer kernels with less between them are one phase. Between the updates of
dense and expert parameters lies a parameter all-gather, or (Muon) a few GEMMs of the update itself; no forward and
backward pass fits there."""
MAXIMUM_PAUSE_FRACTION = 0.5
"""Of the step: a longer pause between two step ranges belongs to no step. The host also works between two step ranges
(logging, data): that is the earlier step's time. A pause of more than half a step is something else (evaluation, a
checkpoint)."""

FULL_QUEUE_OPERATIONS = 900
"""Operations that wait to run while the launch queue is full, at least. Launches that waited for 20 ms or more had
1,004 to 1,021 operations before them on their stream that had not ended (H200, driver 580)."""
MINIMUM_START_SKEW_FRACTION = 0.1
"""Of the step: captures that start further apart than this affect the first captured steps. If profilers start a tenth
of a step apart, the first captured collectives wait for the last profiler; less than that is ordinary skew of the
ranks."""
