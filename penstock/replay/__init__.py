"""Tasks of an application again, from their checkpoints, in a process that writes nothing."""
