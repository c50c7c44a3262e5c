"""What the processor nodes do: one class per Kafka Streams processor, compiled into a closure for each task."""
