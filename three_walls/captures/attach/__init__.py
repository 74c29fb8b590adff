"""``three-walls attach``: runs the program of one rank, under the profiler where it is to be profiled."""
