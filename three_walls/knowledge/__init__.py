"""Reviewed data tables of ``rules/``, loaded strictly; imports only the vocabulary and the resources."""
