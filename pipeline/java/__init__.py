"""Java and its jars, for Spark and for the development broker."""
