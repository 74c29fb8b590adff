"""The ranks of a run compared: matched calls, one clock, the steps that are read and attributed."""
