"""Which module, pass and layer an operation belongs to."""
