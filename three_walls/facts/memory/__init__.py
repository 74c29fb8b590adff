"""Device memory: what a run needs by its configuration, what it was seen to use, and whether it is short."""
