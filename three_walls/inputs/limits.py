"""Limits on files of unknown origin, each far above what a real run needs."""

from __future__ import annotations

MOST_TEXT_BYTES = 16 * 1024 * 1024
"""Of a text file that the user names. A real run_config.yaml has 20 to 40 kB, an overrides.txt less."""

MOST_YAML_ENTRIES = 500_000
"""Of one YAML document. What an alias repeats counts again, because a walk over the data visits it again."""
MOST_YAML_LEVELS = 40
"""Of collections within collections in YAML; a saved configuration has five."""
LONGEST_YAML_NUMBER = 40
"""Characters of a number in YAML; a longer one stays text."""
LONGEST_PRINTED_LIST = 20_000
"""Characters of a list that a log prints; one entry per layer stays far below."""
MOST_NESTED_SHELLS = 4
"""Shells that run one another (``bash -c "bash -c ..."``) in a command line."""
LONGEST_OVERRIDES_LINE = 64 * 1024
"""Characters of one line of an overrides.txt; reading a word takes time with the square of its length."""

MOST_SNAPSHOT_BYTES = 4 << 30
"""Of a memory snapshot's file."""
MOST_SNAPSHOT_CONTAINERS = 20_000_000
"""Dicts, lists and tuples in one pickle; a snapshot of a million events has fewer than ten million."""
MOST_INTEGER_BYTES = 64
"""Of one integer in a pickle; addresses and sizes have eight."""
LEAST_BYTES_PER_ENTRY = 16
"""Of a segment, block or event in a snapshot's file. A shorter file repeats entries by reference."""

MOST_LINE_BYTES = 16 * 1024
"""Of one line of a log. A longer line is skipped, whatever it holds; the lines that are read are far shorter."""
MOST_FOREIGN_LINES = 100_000
"""Consecutive lines of other processes within a block of a log. After more, the block counts as never closed."""
MOST_FOREIGN_LINES_OF_PRINTS = 1_000
"""The same for a block that a run prints repeatedly, each time at once."""
MOST_BLOCK_ENTRIES = 200_000
"""Of one block of a log: twelve timers of 16,384 ranks."""
MOST_PROCESSES = 100_000
"""Processes that are distinguished in one log file, by the prefixes of their lines."""
MOST_ITERATIONS = 100_000
"""Iteration lines of a log that are kept, and step-time lines. Further ones are only counted."""
MOST_RANKS = 100_000
"""Ranks whose memory lines are kept."""
MOST_EVENTS_OF_A_KIND = 1_000
"""Different events of one kind in a log that are kept."""
MOST_TIMER_VALUES = 100_000
"""Values of timers that are kept: 800 prints of 12 timers on 8 ranks, or 8 on 1,024. Of more, a share is kept."""
MOST_JOBS = 1_000
"""Jobs of one progress file; the latest are kept."""
