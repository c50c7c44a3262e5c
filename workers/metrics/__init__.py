"""What is measured in a stream thread, and the memory that it may take."""
