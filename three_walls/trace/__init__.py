"""Nsight Systems exports as typed frames, and everything else that a user hands in with them."""
