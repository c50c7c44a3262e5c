"""A topology as Spark streaming queries: capabilities, order, progress, failures."""
