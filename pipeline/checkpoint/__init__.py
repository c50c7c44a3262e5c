"""The checkpoint directory: whose it is, which driver has it, which engine owns the state."""
