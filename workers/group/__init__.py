"""A stream thread's part in its group: rebalances, topics of the application, which host has what."""
