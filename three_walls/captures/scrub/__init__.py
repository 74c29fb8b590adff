"""A copy of a capture that holds nothing private."""
