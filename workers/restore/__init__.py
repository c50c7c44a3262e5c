"""Changelogs read into stores: the restore consumer, progress, listeners."""
