"""How to capture a run: the profiler's command line around the launcher's, and the settings that bracket the steps."""
