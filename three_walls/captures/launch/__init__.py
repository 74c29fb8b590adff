"""The commands that capture a run well."""
