"""Timeline, ranks and attribution -> facts: named numbers with a definition, or the reason why one is missing."""
