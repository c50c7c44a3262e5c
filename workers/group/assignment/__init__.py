"""The assignment of tasks: the partition assignor and its wire format."""
