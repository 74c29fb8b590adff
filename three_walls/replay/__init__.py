"""The step as a dependency graph that can be changed and replayed: what an edit gives back."""
