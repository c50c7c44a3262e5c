"""What operators see of the task that runs them: stores, handlers, punctuation, calls that wait."""
