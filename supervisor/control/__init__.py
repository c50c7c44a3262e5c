"""What operators see and may do, and the socket by which commands on this host reach it."""
