"""The ordered plan: what each edit gains once the earlier ones are applied."""
