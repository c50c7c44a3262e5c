"""TCP ports that are free on this machine at the time of the call, and that only their user asks for.

The system gives ports from a range (Linux: 32768 and above) to outgoing connections and to servers that ask for any
port. One from there that is free now may be taken before a test has started its server, or while the server is down, so
these are all below. Workers of one test run have different ports, and a process gives no port twice.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

#: Below the system's range, and below the dev brokers'.
PORTS = range(10_000, 20_000)
#: Maximum number of workers of a test run, each with an equal part of PORTS.
WORKERS = 20


def _own_ports() -> list[int]:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    own = list(PORTS if worker is None else PORTS[int(worker.removeprefix("gw")) % WORKERS :: WORKERS])
    random.SystemRandom().shuffle(own)
    return own


def _free_ports() -> Iterator[int]:
    for port in _own_ports():
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue  # taken
        yield port


_ports = _free_ports()


def free_port() -> int:
    """Return a port on which no process listens now."""
    return next(_ports)


def free_ports(count: int) -> list[int]:
    """Return different ports on which no process listens now."""
    return [next(_ports) for _ in range(count)]
