"""Snapshots of PyTorch's CUDA allocator: read without running them, replayed, summed up."""
