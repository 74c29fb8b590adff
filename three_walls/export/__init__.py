"""One step in detail: tracks for trace viewers, and the kernels, host work and timeline of the report."""
