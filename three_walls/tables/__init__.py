"""Reviewed data files (`tables/*.yaml`), each read into typed rows."""
