"""Capturing a run: the commands, what a capture can support, attaching to a job, sharing an export."""
