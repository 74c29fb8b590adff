"""Writes a copy of an export that can be shared."""
