"""Buffers of records that wait for a time: suppress, and joins with a grace period."""
