"""The plan as overrides of a launcher, checked against what each Megatron-Bridge release accepts."""
