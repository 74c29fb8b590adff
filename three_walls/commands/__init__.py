"""Commands beside ``analyze``, one module each."""
