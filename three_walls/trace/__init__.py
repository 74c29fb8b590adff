"""SQLite export -> typed tables. Knows Nsight Systems' schema; knows nothing of steps or walls."""
