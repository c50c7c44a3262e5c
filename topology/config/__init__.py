"""The configuration: keys, types, defaults."""
