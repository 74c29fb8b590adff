"""Leaves: tools without domain knowledge."""
