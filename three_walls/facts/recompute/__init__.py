"""Recompute: forward work that a step replays in its backward pass, and what it costs."""
