"""Restores stores from changelogs: the restore consumer, progress, listeners."""
