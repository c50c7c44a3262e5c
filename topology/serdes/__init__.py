"""Serdes: keys and values as bytes."""
