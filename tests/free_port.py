"""A TCP port of this machine that is free when it is asked for."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
