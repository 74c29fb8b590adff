"""Cases of rules: written by hand, and derived from the rule."""
