"""Makes the timeline from traces: every operation with its category, and the training steps. Start: ``timeline.py``."""
