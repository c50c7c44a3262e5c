"""Changelogs that are read into stores: progress, listeners."""
