"""One step of a run for trace viewers: what ran, what owns each nanosecond, and why nothing ran."""
