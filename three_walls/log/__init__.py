"""Training logs: from text to what ran, how long iterations took, how much memory they used."""
