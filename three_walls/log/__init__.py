"""Training log -> ``vocabulary/training_log.py``: files, lines that hold an anchor, values, steady iterations."""
