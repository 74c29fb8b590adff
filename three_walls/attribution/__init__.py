"""Attributes the time of each step: budget, exposed communication, gaps, waits. Start: ``attribution.py``."""
