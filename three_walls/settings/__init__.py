"""What a run was told to do, from every place that says it: the user, configs, logs, command line, environment."""
