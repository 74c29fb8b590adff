"""Several runs of one job: compared, gated, and their history of edits."""
