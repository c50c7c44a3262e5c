"""State carried from one engine to the other."""
