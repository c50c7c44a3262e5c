"""State stores, read from outside their thread."""
