"""How the log looks, and the output of the processes."""
