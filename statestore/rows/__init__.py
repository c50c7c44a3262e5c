"""What lies under every store: ordered rows of bytes, on RocksDB or in memory."""
