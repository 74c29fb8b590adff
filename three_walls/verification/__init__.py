"""Checks overrides: with our own checker, and with Megatron-Bridge itself where it can be imported."""
