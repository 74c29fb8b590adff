"""Which ranks of a large run are read in full, and what one task of a survey reads."""

from __future__ import annotations

MOST_LATE_RANKS_IN_FULL = 4
"""Late ranks of a surveyed run that are read in full, the latest first: ranks are repaired one by one. The others are
listed with how late they are."""
PEERS_OF_LATE_RANK = 2
"""Ranks that are read in full with each of them, to find the cause by comparison. The cause is what the late rank did
longer than the median of its peers, which two of them give."""
MOST_STAGES_IN_FULL = 8
"""Pipeline stages of a surveyed run of which one rank each is read in full. The first, the last and the stages evenly
between them show how a pipeline is balanced."""
MOST_RANKS_PER_TASK = 16
"""Captures that one task of a survey reads. polars takes about as long for the operations of one rank of 6 MB as for
those of several. Sixteen such ranks take 2 s, so a lost worker costs little, and 1,024 ranks are 64 tasks."""
MOST_MIB_PER_TASK = 128
"""Size of the captures that one task reads together, if they are several. A process then takes less than 0.5 GB, and
one large capture is a task of its own."""
