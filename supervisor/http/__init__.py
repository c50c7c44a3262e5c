"""HTTP: endpoints, security, forwarding to other hosts, the watch over them, the dashboard."""
