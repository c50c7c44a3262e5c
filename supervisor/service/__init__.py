"""A Unix service: signals, systemd."""
