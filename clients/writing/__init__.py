"""Writing records: our own Produce requests. The kernel builds the batches."""
