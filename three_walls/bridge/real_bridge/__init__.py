"""Overrides checked by Megatron-Bridge itself, in an interpreter that has it."""
