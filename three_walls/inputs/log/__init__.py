"""Training logs -> iterations, memory, timers, settings."""
