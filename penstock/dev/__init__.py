"""A Kafka broker for development, on this machine."""
