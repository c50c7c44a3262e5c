"""Checkpoints of the stores of tasks in object storage."""
