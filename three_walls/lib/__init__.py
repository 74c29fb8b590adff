"""Leaves: tools without knowledge of GPUs or training, and the types of facts, which every other room may use."""
