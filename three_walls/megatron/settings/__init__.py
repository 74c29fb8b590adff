"""The settings of a run: read from every source, merged, each value with its source."""
