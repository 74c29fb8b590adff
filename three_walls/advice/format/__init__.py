"""Rule files: their types, how they are read, and new ones."""
