"""Partitions that stall although they have records."""
