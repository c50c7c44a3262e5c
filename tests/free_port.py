"""TCP ports that are free on this machine at the time of the call."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_port() -> int:
    """Return a port on which no process listens now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different ports on which no process listens now."""
    with ExitStack() as open_ones:
        listeners = [open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
