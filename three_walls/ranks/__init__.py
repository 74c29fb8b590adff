"""Timelines of several ranks -> matched calls on one clock, and steps that are numbered alike on all ranks."""
