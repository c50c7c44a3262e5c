"""A topology as Spark streaming queries: what can run, progress, failures, what operators see."""
