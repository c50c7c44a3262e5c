"""Writing records: Produce requests of our own, whose batches the kernel makes."""
