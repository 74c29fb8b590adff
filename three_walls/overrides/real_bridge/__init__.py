"""Runs Megatron-Bridge itself on a CPU to judge overrides."""
