"""Group membership by either protocol, and the group's offsets. membership.py is the interface."""
