"""Java and its jars, for Spark and the development broker."""
