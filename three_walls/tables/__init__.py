"""Reviewed data that several rooms read: names of kernels, settings, GPUs, releases; the files are in ``tables/``."""
