"""What operators can see and do, and the socket for commands on this host."""
