"""Processes: started, watched, replaced, stopped."""
