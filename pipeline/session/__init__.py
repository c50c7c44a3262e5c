"""The Spark session of an application: started, ended, and the topics that it needs."""
