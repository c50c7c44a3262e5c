"""Penstock against Kafka Streams (Java), side by side: ``python -m benchmarks``. See README.md."""
