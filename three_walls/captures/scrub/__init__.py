"""Makes a copy of a capture that contains nothing private. Start: ``scrub.py``."""
