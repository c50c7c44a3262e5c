"""Partitions that are not read although they have records."""
