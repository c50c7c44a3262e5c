"""The state directory: checkpoints, snapshots."""
