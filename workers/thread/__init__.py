"""The stream thread: its loop, how it is put together, commands, measurement."""
