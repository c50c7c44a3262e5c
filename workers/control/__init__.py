"""What a stream thread and its supervisor say to each other: messages, the thread's state."""
