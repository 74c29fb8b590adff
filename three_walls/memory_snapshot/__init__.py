"""Snapshots of PyTorch's CUDA allocator: what was in use at the peak, and by what."""
