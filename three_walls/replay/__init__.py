"""The step as a dependency graph, and what it would be after changes."""
