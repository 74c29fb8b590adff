"""Nsight Systems SQLite exports -> tables with one schema."""
