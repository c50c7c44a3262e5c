"""Stores as people and programs look at them."""
