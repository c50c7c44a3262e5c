"""Moves state from one engine to the other."""
