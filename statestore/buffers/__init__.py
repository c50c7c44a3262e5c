"""Buffers of records until a time: suppress, and joins with a grace period."""
