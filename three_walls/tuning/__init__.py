"""Tries edits on the user's own job, one short run each, and keeps those that are measured to be faster."""
