"""Serdes: how keys and values become bytes."""
