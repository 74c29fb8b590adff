"""Runs of many ranks: a summary of each, and which of them are read in full."""
