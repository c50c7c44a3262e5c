"""Measurements of a stream thread, and its memory budget."""
