"""Who gets which task: the partition assignor and its wire format."""
