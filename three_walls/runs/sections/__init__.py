"""The sections of a comparison."""
