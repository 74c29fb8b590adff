"""What crosses the seams between stages: plain types, units, errors. Imports no other package."""
