"""Compares the ranks and finishes the timeline: matched calls, a common clock. Start: ``matched_ranks.py``."""
