"""Brokers and leaders: metadata, admin requests, the IO thread."""
