"""The configuration: its keys, their types and defaults."""
