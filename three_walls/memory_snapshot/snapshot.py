"""A snapshot of PyTorch's CUDA allocator: how much memory was in use at the peak, and by what."""

from __future__ import annotations

from dataclasses import dataclass

NO_STACK, OTHER, BEFORE_RECORDING = "no_stack", "other", "before_recording"
CATEGORIES = {
    "parameters": "modules, while the model was built",
    "parameters_and_gradients": "contiguous buffers of parameters and gradients",
    "optimizer_state": "main parameters and moments of the optimizer",
    "optimizer_step": "temporaries of an optimizer step",
    "activations": "allocated in the forward pass",
    "backward": "allocated by Python code in the backward pass, recompute included",
    "communication": "receive buffers of exchanges and collectives",
    OTHER: "the stack matches no pattern of tables/allocation-stacks.yaml",
    NO_STACK: "no Python stack was recorded: mostly the backward pass, which runs in autograd's own threads",
    BEFORE_RECORDING: "allocated before the recording began",
}
"""Category of an allocation -> what it holds."""


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Memory in use by one category."""

    category: str
    bytes: int
    fraction: float
    """Of the allocated memory at that moment."""


@dataclass(frozen=True, slots=True)
class AllocationSite:
    """All allocations in use that were made from the same Python stack."""

    stack: tuple[str, ...]
    """``file:function``, the innermost frame first, without directories."""
    category: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that failed."""

    requested_bytes: int
    device_free_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """The most memory in a stretch of the recorded history."""

    events: int
    """Number of the allocator's events until the end of the stretch; they have no time on the trace's clock."""
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A snapshot. Allocated memory is what tensors requested; the allocator rounds it up within what it reserves.

    Without a recorded history no peak is known; then ``shares`` and ``sites`` describe the moment of the snapshot.
    """

    path_name: str
    sha256: str
    device: int
    no_peak_reason: str | None
    """Why the peak is not known (no recorded history); null where it is."""
    peak_allocated_bytes: int | None
    """Most memory allocated at any moment."""
    reserved_at_peak_bytes: int | None
    """Memory reserved at that moment."""
    peak_reserved_bytes: int | None
    """Most memory reserved at any moment."""
    fragmentation_fraction: float | None
    """(reserved - allocated) / reserved, at the peak of allocated memory."""
    allocated_bytes: int
    """At the moment of the snapshot."""
    reserved_bytes: int
    """At the moment of the snapshot."""
    largest_free_block_bytes: int
    """At the moment of the snapshot."""
    shares: tuple[MemoryShare, ...]
    """Memory in use by category, at the peak where it is known."""
    sites: tuple[AllocationSite, ...]
    """The ten allocation sites with most memory in use at that moment."""
    failures: tuple[FailedAllocation, ...]
    """Allocations that failed."""
    release_count: int
    """How often the allocator returned segments to the driver, for a retry or by empty_cache. Several in a row count
    once."""
    history: tuple[MemoryMoment, ...] = ()
    """Allocated and reserved memory over the recorded events, in at most 240 stretches of equal length; empty without a
    recorded history."""
