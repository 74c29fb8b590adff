"""Profiles a job from inside: runs the program of a rank, and analyzes when it ends."""
