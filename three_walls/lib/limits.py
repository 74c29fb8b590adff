"""Limits on files of unknown origin, each far above what a real run needs."""

from __future__ import annotations

MOST_TEXT_BYTES = 16 * 1024 * 1024
"""Of a text file that the user names. A real run_config.yaml has 20 to 40 kB, an overrides.txt less."""

MOST_REPORT_BYTES = 512 * 1024 * 1024
"""Of a report.json. Those of bundled runs have 0.3 to 6 MB."""
LONGEST_PRINTED_LIST = 20_000
"""Characters of a list that a log prints; one entry per layer stays far below."""
LONGEST_SHELL_STRING = 16 * 1024
"""Characters of a command string of a shell in which quotes are read; shlex takes quadratic time for a long word."""
MOST_NESTED_SHELLS = 4
"""Shells that run one another (``bash -c "bash -c ..."``) in a command line."""
LONGEST_OVERRIDES_LINE = 64 * 1024
"""Characters of one line of an overrides.txt; reading a word takes time with the square of its length."""
MOST_OVERRIDES = 1_000
"""Of an overrides.txt; a run has some dozens. Finding the setting that a misspelt one resembles takes milliseconds."""

MOST_SQLITE_STEPS_PER_BYTE = 100
"""Steps of SQLite's machine in one query, per byte of the export. A join over all of its rows takes fewer than ten."""
LATEST_TIME_NS = 1 << 61
"""Of an event: the year 2043 in an export with UTC times (``nsys export --ts-normalize``). A later time is damaged."""
LONGEST_OPERATION_NS = 24 * 3600 * 10**9
"""Of a device operation. A collective that hangs ends after minutes, by the timeout of its watchdog."""
MOST_COPY_BYTES = 1 << 40
"""Of a copy, memset or allocation: more than any device or host has memory."""
MOST_BLOCKS = 1 << 31
"""Thread blocks along one side of a kernel's grid, which is the limit of CUDA."""
MOST_RANKS_OF_EXPORT = 1_024
"""Pairs of a process and a GPU. A capture is of one host, which has up to 16 GPUs, of up to seven parts each."""
LONGEST_STEP_NUMBER = 15
"""Digits of the number of a training step; with a longer one, steps are numbered in their order."""

MOST_UNPACKED_RATIO = 1_000
"""Bytes per byte of an .xz or .zst export; real exports unpack to 5 to 20 times their size."""
MOST_UNPACKED_LOG_RATIO = 200
"""The same of a compressed log. Logs of Megatron unpack to 8 to 40 times their size, and reading takes longer."""
ALWAYS_UNPACKED_BYTES = 64 << 20
"""Of a compressed export, whatever its ratio."""
MOST_UNPACKED_SHARE_OF_FREE_DISK = 0.8
"""Of the free space of the temporary directory that an unpacked export may fill."""
MOST_KEPT_BYTES = 4 << 30
"""Of all unpacked exports together that are kept while a run is analyzed; the first one is kept whatever its size. The
temporary directory may be in memory."""
MOST_UNPACKING_BYTES = 256 << 20
"""Of memory for unpacking. ``xz -9`` takes 65 MiB and ``zstd --long`` 128 MiB."""

LONGEST_NAME = 16 * 1024
"""Characters of the name of a kernel, a call or an NVTX range; of a longer one the beginning is read. In 53 exports the
longest kernel name has 1,421 and the longest range 2,583."""
MOST_NESTED_RANGES = 64
"""NVTX ranges of one thread that are open at the same time; steps of Megatron nest up to 9."""
MOST_DIMENSIONS = 16
"""Of a tensor; PyTorch's operators have up to 8."""
MOST_ELEMENTS = 1 << 48
"""Of a tensor: 512 TiB in BF16."""

MOST_SNAPSHOT_BYTES = 4 << 30
"""Of a memory snapshot's file."""
MOST_SNAPSHOT_CONTAINERS = 20_000_000
"""Dicts, lists and tuples in one pickle; a snapshot of a million events has fewer than ten million."""
MOST_INTEGER_BITS = 64
"""Of one integer in a pickle, as addresses have."""
MOST_MEMORY_BYTES = 1 << 50
"""Of one size in a snapshot: 1 PiB."""
LONGEST_PATH = 4096
"""Characters of a path; Linux opens no longer one."""
LONGEST_FRAME_TEXT = 256
"""Characters of a function's name, and of the end of its file's path, in a snapshot's stacks; more are cut off."""
LEAST_BYTES_PER_ENTRY = 16
"""Of a segment, block or event in a snapshot's file. A shorter file repeats entries by reference."""

MOST_LINE_BYTES = 16 * 1024
"""Of one line of a log. A longer line is skipped, whatever it holds; the lines that are read are far shorter."""
MOST_PREFIXES = 12
"""Of one line of a log: a launcher, a container, a logger and a time stamp put one each before it."""
LONGEST_LOG_NUMBER = 32
"""Characters of a number in a log; a longer one is not read."""
MOST_FOREIGN_LINES = 100_000
"""Consecutive lines of other processes within a block of a log. After more, the block counts as never closed."""
MOST_FOREIGN_LINES_OF_PRINTS = 1_000
"""The same for a block that a run prints repeatedly, each time at once."""
MOST_BLOCK_ENTRIES = 200_000
"""Of one block of a log: twelve timers of 16,384 ranks."""
MOST_OPEN_BLOCK_BYTES = 128 * 1024 * 1024
"""Of memory for all open blocks of a log file together. A block of 200,000 entries takes 40 MB, tracebacks of 16,384
ranks take 23 MB. A block that does not fit is left out, and a warning states how many were."""
MOST_PROCESSES = 100_000
"""Processes that are distinguished in one log file, by the prefixes of their lines. Of the lines of further ones, a
warning states how many were read without their process."""
LONGEST_ORIGIN = 512
"""Characters of the prefixes that name a process; of longer ones the end is compared."""
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
