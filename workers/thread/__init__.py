"""The stream thread: its loop, its assembly, commands, measurement."""
