"""The report: its contract, its sections, and a renderer per format."""
