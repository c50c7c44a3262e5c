"""Stream-thread processes: start, watch, replace, stop."""
