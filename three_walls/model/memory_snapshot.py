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
    "backward": "allocated in the backward pass by Python code, recompute included",
    "communication": "what exchanges and collectives receive into",
    OTHER: "its stack matches no pattern of tables/allocation-stacks.yaml",
    NO_STACK: "without a Python stack: mostly the backward pass, which runs in autograd's own threads",
    BEFORE_RECORDING: "allocated before the recording began",
}
"""Category of an allocation -> meaning."""


@dataclass(frozen=True, slots=True)
class MemoryShare:
    category: str
    bytes: int
    fraction: float
    """Of the allocated memory at that moment."""


@dataclass(frozen=True, slots=True)
class AllocationSite:
    """All allocations in use that one stack made. ``stack``: file:function, innermost first, no directories."""

    stack: tuple[str, ...]
    category: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation that failed."""

    requested_bytes: int
    device_free_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """One snapshot. Allocated memory is what tensors asked for; the allocator rounds it up within what it reserves.

    Without a recorded history no peak is known: ``shares`` and ``sites`` are of the moment of the snapshot.
    """

    path_name: str
    sha256: str
    device: int
    because_no_peak: str | None
    peak_allocated_bytes: int | None
    reserved_at_peak_bytes: int | None
    peak_reserved_bytes: int | None
    fragmentation_fraction: float | None
    """(reserved - allocated) / reserved, at the peak of allocated memory."""
    allocated_bytes: int
    reserved_bytes: int
    largest_free_block_bytes: int
    """Those three at the moment of the snapshot."""
    shares: tuple[MemoryShare, ...]
    sites: tuple[AllocationSite, ...]
    """The largest ten."""
    failures: tuple[OutOfMemory, ...]
    release_count: int
    """How often the allocator gave segments back to the driver (in a row counts once): retries, or empty_cache."""
