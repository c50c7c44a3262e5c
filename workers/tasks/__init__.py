"""Tasks: active, standby and global ones, their registries and their manager, their records, commits and state."""
