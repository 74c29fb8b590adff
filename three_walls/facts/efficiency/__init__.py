"""Efficiency: floating point operations against the time that they take and the GPU's peak."""
