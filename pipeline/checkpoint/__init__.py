"""The checkpoint directory: its owner, its driver, and the engine that owns the state."""
