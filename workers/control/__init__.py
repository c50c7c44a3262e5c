"""What a stream thread and its supervisor exchange: messages, the thread's state."""
