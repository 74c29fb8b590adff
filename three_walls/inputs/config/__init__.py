"""Settings of every source -> one run configuration."""
