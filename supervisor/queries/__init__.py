"""Queries of the stream threads: metrics, stores, snapshots."""
