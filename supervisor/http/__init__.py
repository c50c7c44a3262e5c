"""HTTP: endpoints, security, forwarding to other hosts, the dashboard."""
