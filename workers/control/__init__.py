"""Messages between a stream thread and its supervisor, and the thread's states."""
