"""Compares reports of runs: the step, settings, buckets and kernels; conditions on the difference; histories."""
