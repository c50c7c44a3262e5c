"""The same count in other Python libraries for stream processing, each in its own environment."""
