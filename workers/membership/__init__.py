"""How a stream thread joins its group and stays in it. membership.py is the interface of it."""
