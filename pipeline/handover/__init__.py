"""State moved from one engine to the other."""
