"""Pipes to the processes, what arrives in them, and descriptors that are kept for them."""
