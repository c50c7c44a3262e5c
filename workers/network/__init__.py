"""Asking brokers without librdkafka: connections, leaders, bytes. What is asked stands in fetching and producing."""
