"""Writing records without librdkafka: Produce requests of our own, of batches that the kernel has grown."""
