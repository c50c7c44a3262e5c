"""Ordered rows of bytes under every store, in RocksDB or in memory."""
