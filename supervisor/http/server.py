"""The HTTP server: a thread of the supervisor's process that serves requests and makes no decisions."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

from ..control.administration import Administration
from ..logs.log_floods import FloodFilter
from ..supervisor import Supervisor
from .security import HEADERS, HttpAddress
from .view import HttpView, OtherHosts

logger = logging.getLogger(__name__)

#: Connections that the kernel queues until there is room; see connections.py.
BACKLOG = 1024
#: Seconds that pending requests may delay the end.
STOP_SECONDS = 2
#: Added to the niceness of the server's thread (see nice(1)): each of the first steps costs a fifth of the share.
NICENESS = 10
#: The name of the server's thread.
THREAD = "penstock-http"
#: Limits the log lines that requests cause in asyncio and uvicorn.
_FLOODS = FloodFilter(THREAD)


class HttpServer:
    """Started and stopped by KafkaStreams; does nothing unless penstock.http.port is set.

    Raises ConfigError if the address is open to others and there is no token.
    """

    def __init__(
        self, supervisor: Supervisor, administration: Administration, config: StreamsConfig, remote: OtherHosts
    ) -> None:
        self._address = HttpAddress.of(config)
        self._view = HttpView(supervisor, administration, config, remote)
        #: Queries in SQL, over all hosts; also without a port.
        self.sql = self._view.sql
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        #: The served port, or None.
        self.port: int | None = None

    def start(self) -> None:
        """Listen, then serve in a thread. Raises ConfigError if the address is not available."""
        if self._address is None:
            return
        listener = self._listener = _listen(self._address)
        self.port = listener.getsockname()[1]
        # Imported only if used: an application without HTTP does not pay for it.
        uvicorn = import_module("uvicorn")
        endpoints, connections = (import_module(name, __package__) for name in (".endpoints", ".connections"))
        stopping = asyncio.Event()
        self._server = connections.Server(
            uvicorn.Config(
                endpoints.http_app(self._view, self._address, stopping),
                log_config=None,
                access_log=False,
                log_level=logging.WARNING,
                lifespan="off",
                ws="none",
                http="httptools",
                loop="asyncio",
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=connections.IDLE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
                headers=[*HEADERS],
            ),
            listener,
            stopping,
        )
        for name in ("asyncio", "uvicorn.error"):
            logging.getLogger(name).addFilter(_FLOODS)
        self._thread = threading.Thread(target=self._serve, name=THREAD, daemon=True)
        self._thread.start()
        logger.info("Serving HTTP at http://%s:%d/", self._address.host, self.port)

    def _serve(self) -> None:
        """Serve until the end. The port stays open after a failure: else watching hosts would declare this one lost."""
        _yield_to_processing()
        try:
            self._server.run(sockets=[])  # it accepts for itself
        except Exception:
            logger.exception("The HTTP server has failed; the application continues without it")

    def stop(self) -> None:
        """End the server, with a moment for pending requests, and the process that waits for a query in SQL."""
        self.sql.close()
        if self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS + 1)
        if self._listener is not None:
            self._listener.close()
        self._thread = self._listener = self.port = None


def _yield_to_processing() -> None:
    """Let stream threads have a busy processor first: many reads would delay the records. Only Linux has such threads.

    Threads and processes that this thread starts, e.g. that of a query in SQL, have the same priority.
    """
    if sys.platform == "linux":
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + NICENESS)


def _listen(address: HttpAddress) -> socket.socket:
    host = address.host.strip("[]")
    try:
        family = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0][0]
        with ExitStack() as stack:
            # asyncio switches off Nagle's algorithm only where the protocol is named; each answer would take 40 ms more
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, address.port))
            listener.listen(BACKLOG)
            stack.pop_all()
    except OSError as error:
        raise ConfigError(
            f"HTTP cannot be served at {address.host}:{address.port}: {error}. Set penstock.http.port and "
            "penstock.http.host to an address of this host that is free."
        ) from error
    return listener
