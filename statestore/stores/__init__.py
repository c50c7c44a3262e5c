"""State stores that write each update through."""
