"""Megatron-Bridge itself, run on a CPU, as the judge of overrides."""
