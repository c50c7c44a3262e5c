"""Shared helpers: argument checks, durations, names, hashes, Java's iteration orders."""
