"""The application as a Unix service: signals, systemd."""
