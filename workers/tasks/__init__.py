"""Active, standby and global tasks: registries, TaskManager, records, commits, state."""
