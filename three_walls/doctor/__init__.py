"""Traces -> what they can support, what not, and how to capture what is missing."""
