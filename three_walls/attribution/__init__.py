"""Timeline -> who owns each nanosecond of a step, and what was exposed, hidden, or waited for."""
