"""The commands beside ``analyze``, one module each: they read arguments, call their package and print."""
