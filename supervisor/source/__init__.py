"""The user's topology: find it, import it, pass it to the processes, compare it with the existing state."""
