"""The record cache, and the stores behind it."""
