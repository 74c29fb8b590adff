"""Surveys runs of many ranks: a summary of every rank, and the full attribution of some. Start: ``rank_survey.py``."""
