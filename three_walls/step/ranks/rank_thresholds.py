"""When calls of ranks are one collective, on one numbering of steps and one clock, and which steps are attributed."""

from __future__ import annotations

# One numbering of steps for ranks whose captures began in different steps.

MINIMUM_COMMON_STEPS = 2
"""Step ends that two captures must have in common before their steps are numbered alike. With fewer step ends in common
a coincidence proves nothing."""
SAME_STEP_FRACTION = 0.1
"""Of the step: ends within this distance are of the same step. Ranks finish a step within this share of its length,
because before the update all wait for the gradient norm."""
DIFFERENT_STEP_FRACTION = 0.5
"""Of the step: ends further apart are of different steps."""

MAXIMUM_STEP_RATIO = 1.25
"""The shortest kept step of a rank to the longest of another one, beyond which they are of two runs. The medians of
ranks of one run differ by 1.3 percent at most (28 runs), and host-bound steps of one rank by 15."""
MAXIMUM_LOST_FRACTION = 0.03
"""Of a kind of operations: by how many a rank may have more than another one of its run. One layer of 32 makes as many;
a capture that drops one event in 200 lost two of 96 token exchanges in each step."""

# One clock for all ranks.

MINIMUM_COMMON_ENDS = 4
"""Matched ends that two captures need before a clock is fitted. With fewer matched ends a median means nothing; hosts
often share one or two calls per step only."""
BETTER_CLOCK_FRACTION = 0.5
"""A fitted clock replaces a simpler one only if it brings the 95th percentile of the residual below this share of what
the simpler clock leaves."""
MAXIMUM_SAME_HOST_ERROR_NS = 1_000_000
"""Error of session clocks up to which two captures are taken to be of one host. Session clocks of one host agree to
microseconds. A larger residual that a fit removes means that it is not one host after all: containers on different
machines often share a host name."""

# Calls that are one collective.

MINIMUM_RESOLVED_FRACTION = 0.9
"""Of a class's time: the part whose calls have to match before the class is split into wait and transfer. A few calls
of a class can run on another communicator than the rest. With more than a tenth of its time in calls that do not match,
splitting the whole class would be a guess."""
MAXIMUM_END_SPREAD_NS = 100_000
"""Calls that end further apart are not matched as one collective. Members of one NCCL collective end within 0.06 ms of
each other (measured on NVLink: all-reduce and all-gather 0.002 ms, reduce-scatter of 17 ms 0.057 ms)."""
MAXIMUM_EVEN_END_SPREAD_NS = 10_000
"""The same for all-reduce and all-gather, whose members end closer together: five times what they show over NVLink.
Concurrent calls of two groups end tens of microseconds apart; with the wider spread they would be matched as one call
of both groups."""
MAXIMUM_EVEN_END_SPREAD_FRACTION = 0.005
"""Of the shortest call: what a long transfer may add to :data:`MAXIMUM_EVEN_END_SPREAD_NS`, because it ends less evenly
(0.057 of 17 ms)."""

# Which steps of a long capture are attributed.

MOST_ATTRIBUTED_OPERATIONS = 800_000
"""Operations of all ranks up to which all steps are attributed; of more, steps with about as many. Attributing an
operation takes about 4 us. So many take three seconds, and are 150 steps of a small model whose host launches 5,250
operations per step: their median is known ten times better than the steps vary."""
FEWEST_ATTRIBUTED_STEPS = 24
"""Steps that are attributed however many operations they have. However large steps are, their median is then known four
times better than they vary; and few captures are longer."""
ATTRIBUTED_STRETCHES = 8
"""Stretches of consecutive steps that these are. Clocks, memory and routing drift in the course of minutes, so the
steps are taken from all over the capture. Each stretch also needs the operations next to it."""
LONGEST_ATTRIBUTED_STEPS = 4
"""The longest steps, which are attributed besides. An outlier has a cause of its own (a checkpoint, garbage
collection), which the others do not show."""
