"""The thread's part in its group: rebalances, assignment, the application's topics, metadata of hosts."""
