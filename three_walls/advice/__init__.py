"""Findings, the wall and the plan, judged from facts alone."""
