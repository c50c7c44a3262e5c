"""State stores, read from outside of their thread."""
