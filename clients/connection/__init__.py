"""A broker's socket: opened, authenticated, with requests on their way."""
