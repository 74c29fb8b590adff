"""What a run was told to do, from every place that says it: command line, environment, saved configs, logs, the user."""
