"""Edits -> overrides of Megatron-Bridge and Megatron-LM, checked against what each release accepts."""
