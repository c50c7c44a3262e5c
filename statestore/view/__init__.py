"""Stores as text and JSON, for people and programs outside the task."""
