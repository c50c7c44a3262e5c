"""The state directory: locks, checkpoints, snapshots."""
