"""A soak test: a real application under steady load, and its resource usage (``python -m tests.soak``)."""
