"""Group membership by either protocol, and the group's offsets. group_member.py is what a thread calls."""
