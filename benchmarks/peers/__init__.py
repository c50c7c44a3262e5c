"""The same count in other Python libraries for stream processing, each in an environment of its own."""
