"""Reviewed data files (`tables/*.yaml`), each with its typed model."""
