"""A soak: a real application under steady load for a while, and what it takes meanwhile (``python -m tests.soak``)."""
