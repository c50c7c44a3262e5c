"""The processor nodes: one class for each Kafka Streams processor, compiled into a node for each task."""
