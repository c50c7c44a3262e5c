"""How a process joins and stays in a group."""
