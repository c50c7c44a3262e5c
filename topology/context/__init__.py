"""What an operator sees of its task: stores, error handlers, punctuation, async calls."""
