"""The graph of a topology: named, optimized, built, described, compared."""
