"""Everything that is read: Nsight exports, settings, training logs, memory snapshots. Nothing here judges."""
