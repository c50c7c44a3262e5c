"""A member of a group, by either protocol, and the group's offsets. membership.py is the interface of it."""
