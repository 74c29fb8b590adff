"""The tables that stages of the step pass on, with a comment for each column. A table may have more columns than its
schema states, and text may be a category.

``rank_index`` is the index of a rank (one GPU of one process of one capture) in ``Trace.ranks``. ``capture_id`` is that
of the capture: processes and threads have their numbers within a capture. Times are on the clock of the rank's own
capture, in ns; ``start_ns`` is inclusive and ``end_ns`` exclusive.
"""

from __future__ import annotations

from typing import Annotated

import polars as pl

from three_walls.trace.schemas import OPERATIONS, EventRecords, StreamWaits

_INTERVAL = {"start_ns": pl.Int64, "end_ns": pl.Int64}
_GRID = {"grid_x": pl.Int32, "grid_y": pl.Int32, "grid_z": pl.Int32}

Intervals = Annotated[pl.DataFrame, _INTERVAL]
"""Anything that has a start and an end."""

RankIntervals = Annotated[pl.DataFrame, {"rank_index": pl.Int64, **_INTERVAL}]
"""The same, of a rank."""

CommonIntervals = Annotated[
    RankIntervals,
    {
        "common_start_ns": pl.Int64,  # on the clock that all ranks share; null where that of the rank is not known
        "common_end_ns": pl.Int64,
    },
]
"""Intervals of ranks on one clock."""

ThreadIntervals = Annotated[pl.DataFrame, {"capture_id": pl.Int64, "thread": pl.Int64, **_INTERVAL}]
"""When a host thread did something."""

_LAUNCH = {
    "launch_start_ns": pl.Int64,  # when the call that launched it began; null if not recorded, as the next two
    "launch_end_ns": pl.Int64,
    "launch_thread": pl.Int64,  # the thread that made the call
}

Launches = Annotated[pl.DataFrame, _LAUNCH]
"""The launch of each operation, in the order of the operations."""

_LAUNCHED = {**OPERATIONS, "capture_id": pl.Int64, "process": pl.Int64, **_LAUNCH}
_CLASSIFIED = {
    **_LAUNCHED,
    "category": pl.String,  # name of the bucket; send_recv until the owner of that exchange is known
    "phase": pl.String,  # forward or backward for the one kernel that is counted per attention pass, else null
    "anchor": pl.Boolean,  # whether the kernel marks the optimizer update
    "unknown": pl.String,  # the kernel's short name where no pattern matched, else null
}

LaunchedOperations = Annotated[pl.DataFrame, _LAUNCHED]
"""Device operations with their launch."""

ClassifiedOperations = Annotated[pl.DataFrame, _CLASSIFIED]
"""Device operations with their launch and category."""

Operations = Annotated[
    pl.DataFrame,
    {
        **_CLASSIFIED,
        "communicator": pl.UInt64,  # NCCL's hash of it, of a collective whose call was recorded; else null
        "message_bytes": pl.Int64,  # what this rank contributes to it
    },
]
"""All that is known of device operations: a row each, sorted by rank and start. Most facts are sums over it."""

_STEP = {"rank_index": pl.Int64, "step": pl.Int64}
_STEP_INTERVAL = {**_STEP, **_INTERVAL}
_STEP_AND_CLASS = {**_STEP, "class": pl.String}

StepKeys = Annotated[pl.DataFrame, _STEP]
"""Steps by rank and number."""

STEPS = pl.Schema(
    {
        "rank_index": pl.Int64,
        "step": pl.Int64,  # training step where its number is known, else its order since the first capture began
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "kept": pl.Boolean,  # whether conclusions may rest on it
        "reason": pl.String,  # why it was dropped, or kept despite a defect; empty for a kept step without defects
    }
)

Steps = Annotated[pl.DataFrame, STEPS]
"""The steps of every rank."""

StepIntervals = Annotated[pl.DataFrame, _STEP_INTERVAL]
"""Parts of steps."""

PAUSES = pl.Schema(
    {
        "rank_index": pl.Int64,
        "step": pl.Int64,  # of the operation that is launched next
        "thread": pl.Int64,  # that launches it
        "start_ns": pl.Int64,  # between the two no thread that launches does anything
        "end_ns": pl.Int64,
        "launch_ns": pl.Int64,  # when the next launch begins
        "usual_ns": pl.Int64,  # what such a gap takes at that place, or anywhere if it is as long in each step
        "is_first": pl.Boolean,  # whether that is the first launch of its step
        "place": pl.Int64,  # the same for pauses before the same kernels
        "range": pl.String,  # the innermost NVTX range around it, but for steps; empty: none
        "call": pl.String,  # the CUDA call that stalls, else the longest of the operating system; empty: none
    }
)

Pauses = Annotated[pl.DataFrame, PAUSES]
"""Pauses of the host (``host_pauses.py``)."""

StepTimes = Annotated[pl.DataFrame, {**_STEP, "ns": pl.Int64}]
"""A time per step."""

IdleCauses = Annotated[
    pl.DataFrame,
    {**_STEP_INTERVAL, "label": pl.String},  # an idle bucket but for idle_other; they may overlap
]
"""When a step is idle for a known cause."""

Slices = Annotated[
    pl.DataFrame,
    {**_STEP_INTERVAL, "active": pl.Int64},  # bit i: whether ownership.LABELS[i] is active
]
"""Steps cut wherever an operation or a cause of idle time starts or ends: they cover each step once."""

BudgetRows = Annotated[pl.DataFrame, {**_STEP, "bucket": pl.String, "ns": pl.Int64}]
"""The time that each bucket owns of a step; those of a step sum to its length."""

ExposureRows = Annotated[
    pl.DataFrame,
    {
        **_STEP_AND_CLASS,  # class: category of communication
        "busy_ns": pl.Int64,  # exposed + hidden
        "exposed_ns": pl.Int64,  # while no compute kernel runs
        "hidden_ns": pl.Int64,
    },
]
"""Communication of a step by class, exposed and hidden."""

TransferRows = Annotated[
    pl.DataFrame,
    {
        **_STEP_AND_CLASS,
        "transfer_exposed_ns": pl.Int64,  # the part of exposed_ns in which data moves
        "repeated_exposed_ns": pl.Int64,  # its part in calls that repeat enough to compare; null: not measured
        "fastest_exposed_ns": pl.Int64,  # the same at the pace of the fastest of a kind; null: not measured
        "is_least": pl.Boolean,  # whether exchanges of tokens were estimated without their sizes
    },
]
"""Exposed communication that moves data, by class; the rest waits for peers."""

ReadyDurations = Annotated[
    pl.DataFrame,
    {
        "rank_index": pl.Int64,
        "stream": pl.Int64,
        **_INTERVAL,
        "ready_ns": pl.Int64,  # how long the call takes when its peers are ready; null if not known
    },
]
"""Calls of communication and how long they take without waiting."""

GapCauses = Annotated[pl.DataFrame, {**_STEP_INTERVAL, "cause": pl.String, "detail": pl.String}]
"""The time without compute, cut by its causes: covers it once."""

GapCauseSums = Annotated[pl.DataFrame, {**_STEP, "cause": pl.String, "detail": pl.String, "ns": pl.Int64}]
"""The time without compute of a step by cause."""

GapDetails = Annotated[pl.DataFrame, {"gap": pl.UInt32, **_INTERVAL, "detail": pl.String}]
"""What explains a part of a gap between compute kernels."""

GapActivities = Annotated[GapDetails, {"cause": pl.String}]
"""CUDA calls in which a gap was spent; ``detail`` is the call, and what released a synchronizing one."""

StreamOperations = Annotated[
    pl.DataFrame, {**_INTERVAL, "stream": pl.Int64, "process": pl.Int64, "launch_start_ns": pl.Int64}
]
"""What the search for waits between streams needs of operations."""

StreamEdges = Annotated[
    pl.DataFrame,
    {
        "producer_end_ns": pl.Int64,  # end of the operation that another waited for; null where none is known
        "producer_stream": pl.Int64,
        "resolved": pl.Boolean,  # whether the event of the wait was found
    },
]
"""Waits of operations for those of other streams."""

EventCallTimes = Annotated[
    pl.DataFrame,
    {
        "capture_id": pl.Int64,
        "process": pl.Int64,
        "correlation": pl.Int64,
        "thread": pl.Int64,
        "at_ns": pl.Int64,  # when the call began
    },
]
"""Calls that record an event or make a stream wait for one."""

_CALLED = pl.Schema({"thread": pl.Int64, "at_ns": pl.Int64})

CalledWaits = Annotated[StreamWaits, _CALLED]
CalledRecords = Annotated[EventRecords, _CALLED]
"""Waits and records with the thread that made the call, and when."""

RANGE_TIMES = pl.Schema(
    {
        "thread": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,  # null: the range was still open when the capture ended
        "has_shapes": pl.Boolean,  # whether its text holds the shapes of arguments
    }
)

RangeTimes = Annotated[pl.DataFrame, RANGE_TIMES]
"""When the NVTX ranges of a process were opened and closed."""

NAMED_RANGES = pl.Schema(
    {
        "thread": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,  # null: the range was still open when the capture ended
        "name": pl.String,  # without numbers and shapes of an operator
        "has_sequence": pl.Boolean,  # whether it is an operator with a number
    }
)

ThreadRanges = Annotated[pl.DataFrame, {"thread": pl.Int64, **_INTERVAL}]
"""NVTX ranges of a process; ``end_ns`` is null where the capture ended first."""

NamedRanges = Annotated[pl.DataFrame, NAMED_RANGES]
"""NVTX ranges of a process by the names that users know."""

CallsOfKind = Annotated[
    ThreadIntervals,
    {
        "name": pl.String,
        "kind": pl.String,  # as in tables/api-calls.yaml
        "call": pl.String,  # name of the API function without suffixes
    },
]
"""CUDA API calls of known kinds."""

LateLaunches = Annotated[ThreadIntervals, {"rank_index": pl.Int64, "gap": pl.UInt32}]
"""The part of a gap before the launch of what ends it."""

MEMBERS = pl.Schema(
    {
        "rank_index": pl.Int64,
        "class": pl.String,
        "group": pl.Int64,  # ranks with the same number take part together
        "captured": pl.Int64,  # number of its ranks that were captured
        "size": pl.Int64,  # number of its ranks; null if not known
        "sure": pl.Boolean,  # whether the class can run in no other group
    }
)

Members = Annotated[pl.DataFrame, MEMBERS]
"""The group of each rank in each class of communication."""

StreamRoles = Annotated[
    pl.DataFrame,
    {"rank_index": pl.Int64, "class": pl.String, "stream": pl.Int64, "role": pl.Int64},
]
"""The role of each stream in a class of communication, comparable across ranks."""

_COMMUNICATION = {
    "call": pl.UInt32,  # its number
    "rank_index": pl.Int64,
    "stream": pl.Int64,
    "communicator": pl.UInt64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "class": pl.String,
    "step": pl.Int64,
    "kept": pl.Boolean,  # whether the step is kept, on all members where the call is matched
}

CommunicationCalls = Annotated[pl.DataFrame, _COMMUNICATION]
"""Calls of communication within steps."""

_MATCHED = {
    **_COMMUNICATION,
    **MEMBERS,
    "role": pl.Int64,
    "complete": pl.Boolean,  # whether all ranks of the group were captured
    "instance": pl.Int64,  # equal in all members of a collective
}

CollectiveCalls = Annotated[pl.DataFrame, _MATCHED]
"""Matched calls: a row per collective and rank."""

UnmatchedCalls = Annotated[
    pl.DataFrame,
    {"class": pl.String, "group": pl.Int64, "role": pl.Int64, "step": pl.Int64, "reason": pl.String},
]
"""Sequences of calls that could not be matched."""

Arrivals = Annotated[
    pl.DataFrame,
    {
        **_MATCHED,
        "common_start_ns": pl.Int64,
        "common_end_ns": pl.Int64,
        "latest_ns": pl.Int64,  # when the last member arrived, on the common clock
        "second_ns": pl.Int64,  # when the last but one arrived
        "last": pl.Int64,  # rank index of the last; null unless clearly after the others
        "resolved": pl.Boolean,  # whether arrivals of all members are known on one clock
        "wait_ns": pl.Int64,  # wait + transfer is the duration of the call
        "transfer_ns": pl.Int64,
    },
]
"""Matched calls with the part that waits for the last member to arrive."""

ClassSplits = Annotated[
    pl.DataFrame,
    {
        **_STEP_AND_CLASS,
        "total_ns": pl.Int64,  # durations of all calls, summed and not united
        "wait_ns": pl.Int64,  # null if too few of the calls are matched
        "resolved_ns": pl.Int64,
        "captured": pl.Int64,  # of the group, as in MEMBERS
        "size": pl.Int64,
        "complete": pl.Boolean,
        "resolved": pl.Boolean,  # whether enough of the time is in resolved calls
    },
]
"""Waiting and transfer of a step by class."""

CLOCKS = pl.Schema(
    {
        "capture_id": pl.Int64,
        "offset_ns": pl.Float64,  # common time = own + offset + drift x (own - pivot)
        "drift": pl.Float64,
        "pivot_ns": pl.Float64,
    }
)

Clocks = Annotated[pl.DataFrame, CLOCKS]
"""How to convert times of captures to the clock of the lowest rank."""

KernelCalls = Annotated[
    pl.DataFrame,
    {
        **_STEP,
        "category": pl.String,
        "ns": pl.Int64,
        "name_id": pl.Int64,
        **_GRID,
        "stream": pl.Int64,
        "name_before": pl.Int64,  # name_id of the kernels before and after on the stream: they tell places apart
        "name_after": pl.Int64,
    },
]
"""Compute kernels of kept steps."""

PacedKernels = Annotated[
    pl.DataFrame,
    {
        **_STEP,
        "kernel": pl.String,  # demangled name
        **_GRID,
        "ns": pl.Int64,  # of a survey: a list
    },
]
"""Compute kernels whose work does not follow the routing of tokens."""

ComputeTimes = Annotated[pl.DataFrame, {**_STEP, "compute_ns": pl.Int64}]
"""The time of all compute kernels of a step."""

StepSpreads = Annotated[pl.DataFrame, {**_STEP, "spread": pl.Float64}]
"""Mean over fastest call of the repeated kernels of a step: half of their time is in kernels that spread more."""

Paces = Annotated[
    pl.DataFrame,
    {"rank_index": pl.Int64, "stage": pl.Int64, "pace": pl.Float64},  # 1: as the median rank of the stage
]
"""How long the same kernels take on each rank."""

KernelNames = Annotated[pl.DataFrame, {"capture_id": pl.Int64, "name_id": pl.Int64, "kernel": pl.String}]
"""Demangled names, which are comparable across captures."""
