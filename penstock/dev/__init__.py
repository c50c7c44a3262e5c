"""For development: a broker on this machine."""
