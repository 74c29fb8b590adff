"""Snapshots of PyTorch's CUDA allocator -> what its peak consists of."""
