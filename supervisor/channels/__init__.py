"""Pipes to the processes, their messages, and reserved file descriptors."""
