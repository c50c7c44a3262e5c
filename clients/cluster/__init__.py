"""Which brokers there are, and who leads what."""
