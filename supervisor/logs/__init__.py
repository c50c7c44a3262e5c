"""The format of the log, and the output of the processes."""
