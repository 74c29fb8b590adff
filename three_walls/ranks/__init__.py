"""Attributions of several ranks -> one clock, matched calls, who waited for whom and why."""
