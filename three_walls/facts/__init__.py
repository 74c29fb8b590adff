"""The fact sheet: named numbers, each with its definition, or the reason why it is missing."""
