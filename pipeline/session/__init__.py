"""The application's Spark session, and the topics that it needs."""
