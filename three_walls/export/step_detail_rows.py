"""Rows of the report about one step in detail: kernels, host work, the timeline."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_FRAME_FRACTION = 0.004
"""Of the step: a shorter HostFrame is left out. Its time is that of the frame around it, but not that frame's own."""


@dataclass(frozen=True, slots=True)
class KernelPlace:
    """Launches of one kernel from one place of the model."""

    module: str | None
    """``attention``, ``experts``, ...; null where the replay could not label them."""
    direction: str | None
    """``forward``, ``backward`` or ``recompute``; null where it is not known."""
    operator: str
    """Innermost NVTX range around the launch except steps, layer numbers left out; empty where none was recorded."""
    calls: int
    ns: int


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel (or copies, fills, graphs of one kind) in the representative step of the representative rank.

    All rows of a bucket sum to its kernel time: the sum of the whole durations of what starts in the step. Operations
    that overlap count in full, so that is more than the time that the bucket owns in the budget.
    """

    bucket: str
    name: str
    """The kernel without namespaces and arguments, or the title of the bucket for what is no kernel."""
    full_name: str
    """The demangled name; empty for what is no kernel, and for the rest of a bucket."""
    calls: int
    ns: int
    """Sum of the durations."""
    mean_ns: int
    fastest_ns: int
    median_ns: int
    p95_ns: int
    """95th percentile: of 20 calls the slowest but one."""
    slowest_ns: int
    grid: tuple[int, int, int] | None
    """Blocks of the most frequent variant; null where not recorded."""
    block: tuple[int, int, int] | None
    """Threads of a block of that variant."""
    variants: int
    """Different grids and blocks."""
    places: tuple[KernelPlace, ...]
    """Where it is launched from, the longest first; at most four."""
    other_places: int
    """Places that are left out."""
    layers: int | None
    """Number of different layers of this rank that launch it; null where it is not known."""
    launch_ns: int | None
    """Host time of its launch calls; null where none was recorded, as for nodes of CUDA graphs."""
    fraction_of_peak: float | None
    """Of GEMMs whose shapes were recorded: achieved / peak of the GPU at the kernel's precision."""
    kernels: int = 1
    """Different kernels in the row: more than one where the rest of a bucket is summed."""

    @property
    def is_rest(self) -> bool:
        """Whether it sums the kernels of the bucket that are not listed."""
        return self.kernels > 1


@dataclass(frozen=True, slots=True)
class HostWorkRow:
    """Where a thread that launches work spent the representative step outside of CUDA calls.

    The rows of a thread sum to the step less the time of its CUDA calls.
    """

    thread: int
    """Its id on the host."""
    module: str | None
    """Module of the model whose next operation the thread launches (``attention``, ``experts``, ...); null: unknown."""
    direction: str | None
    """``forward``, ``backward`` or ``recompute`` of that operation; null where it is not known."""
    range: str
    """NVTX ranges around it except operators, the outer first, numbers of layers left out; empty: none."""
    operator: str
    """Innermost operator of PyTorch or autograd function; empty: none."""
    ns: int
    idle_ns: int
    """Of it, while nothing ran on the device."""
    starved_ns: int
    """Of it, while no compute kernel ran because this thread had not launched the next one."""
    calls: int
    """Ranges that it was spent in; 0 for time outside of all ranges."""
    places: int = 1
    """More than one where the places of a thread that are not listed are summed."""


@dataclass(frozen=True, slots=True)
class HostFrame:
    """NVTX ranges of one name at one place of a thread's stack, over the representative step.

    Around all others is the part of the model whose operation the thread launches next; the time before its first range
    and between its ranges is its own: Python, or waiting for another thread. Frames of a
    thread are in the order of a flame graph: each before those in it, the longest of those in one frame first.
    """

    thread: int
    """Its id on the host."""
    depth: int
    """Frames around it."""
    name: str
    start_ns: int
    """From the begin of the flame graph: the frame around it, and the longer ones in that frame, come before."""
    ns: int
    self_ns: int
    """Of it, in no range inside."""
    calls: int


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """What happened on one stream or thread, in order, as columns of equal length: item i is the i-th of each.

    Where there are too many items, short neighbours are joined into one. Its time (``busy_ns``) is exact.
    """

    kind: str
    """``entries`` (what an entry of the plan changes), ``modules`` (what is launched from which), ``budget`` (what owns
    each nanosecond), ``gaps`` (why no compute ran), ``ranges`` (NVTX), ``calls`` (CUDA), or ``operations`` (of a
    stream)."""
    name: str
    """``stream 7 compute``, ``thread 7571 pt_autograd_0``, ``entry 1``; empty for what is of the whole rank."""
    depth: int
    """Of ranges: how many others are around them."""
    start_ns: tuple[int, ...]
    """Delta-coded: the first counts from 0 of the timeline, each other one from the start before it."""
    length_ns: tuple[int, ...]
    text: tuple[int, ...]
    """Place in ``StepTimeline.texts``: kernel, call, range; of gaps the detail; of joined items the longest one's."""
    category: tuple[int, ...]
    """Place in ``StepTimeline.texts``: bucket, or cause of the gap; empty for modules, ranges and calls."""
    count: tuple[int, ...] = ()
    """Items that were joined; empty: none were."""
    busy_ns: tuple[int, ...] = ()
    """Of items that were joined (``count`` above 1), in order: the sum of their lengths."""
    module: tuple[int, ...] = ()
    """Of operations: place in ``StepTimeline.texts`` of module and direction; empty where none is known."""
    launch_ns: tuple[int, ...] = ()
    """Of operations: from the begin of the launch call to the start; -1 where not recorded, and of joined items."""
    wait_ns: tuple[int, ...] = ()
    """Of operations: for how long from its start a collective waits for its last member; 0 where that is not known.
    Empty where none waits."""
    on_path: tuple[int, ...] = ()
    """Of the representative rank: places of items on the critical path of the captured step, each counted from the one
    before it."""


@dataclass(frozen=True, slots=True)
class TimelineCounter:
    """How much of a part of the GPU was in use, from sampled hardware counters."""

    name: str
    """``tensor pipes``, ``SMs``, ``memory`` (reads and writes), ``NVLink`` (the busier direction)."""
    percent: tuple[int | None, ...]
    """Of the peak, averaged over each of as many equal parts of the step; null where not sampled."""


@dataclass(frozen=True, slots=True)
class TimelineRank:
    """The step of one rank."""

    rank: int
    begin_ns: int
    """When its step begins, from 0 of the timeline: where the representative rank's step begins."""
    length_ns: int
    clock_ns: int
    """0 of the timeline on the clock of its capture: what Nsight Systems shows, in ns."""
    role: str
    """``representative``, ``late``, ``healthy``, ``other``."""
    lanes: tuple[TimelineLane, ...]
    """Of ranks that are not shown in detail the budget alone."""
    items: int
    """Operations, calls and ranges before short neighbours were joined."""
    counters: tuple[TimelineCounter, ...] = ()
    """Of the representative rank, if they were sampled."""


@dataclass(frozen=True, slots=True)
class TimelineStretch:
    """A stretch of the representative rank's step: a gap, or exposed communication."""

    rank: int
    start_ns: int
    """From 0 of the timeline."""
    ns: int
    cause: str
    """Cause of the gap that holds most of it, as in ``GapCause``; of exposed communication the bucket."""
    detail: str
    """What the host did, or which operation it waited for; of exposed communication the kernel."""
    next_name: str
    """Kernel or copy that ends it; empty where the step ends."""
    clock_ns: int
    """Its start on the clock of the capture, as Nsight Systems shows it."""


@dataclass(frozen=True, slots=True)
class EntryPlaces:
    """Where in the representative rank's step an entry of the plan changes something."""

    order: int
    """As in ``plan``."""
    longest: tuple[TimelineStretch, ...]
    """The longest stretches in which nothing else starts, at most three; all are in the lane of the entry. None
    where it changes everything: its lane is the whole step."""


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The representative step of every rank that captured it."""

    step: int
    rank: int
    """The representative rank."""
    is_aligned: bool
    """Whether the clocks of the ranks can be compared; else every rank begins at 0."""
    texts: tuple[str, ...]
    """Names that lanes refer to by their place; the first is empty."""
    ranks: tuple[TimelineRank, ...]
    """The representative one first, then late ones and their healthy peer, then the others."""
    worst_gaps: tuple[TimelineStretch, ...]
    """The longest stretches in which nothing ran on the device, at most ten."""
    exposed_intervals: tuple[TimelineStretch, ...]
    """The longest stretches of exposed communication, at most ten."""
    longest: tuple[TimelineStretch, ...]
    """The three longest stretches that each bucket owns, and of each cause of gaps without compute."""
    entries: tuple[EntryPlaces, ...] = ()
    """Entries of the plan that change some operations of the step; those that change none are left out."""
