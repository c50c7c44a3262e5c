"""The proxy's interface for tests: it runs in a thread beside the test."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, TextIO

from .board import Board
from .framing import WireError
from .fronts import HOST, Fronts
from .record import Event, Record
from .rules import Rule, Rules

#: For what the proxy's own thread does: listening, ending connections.
_CALL_SECONDS = 10.0


class WireProxy:
    """Stands in front of all brokers of a cluster; a context manager. Clients connect to ``bootstrap_servers``.

    bootstrap_servers: of the real cluster, without TLS; other brokers are found in passing responses. rules: the first
    that applies decides the action of an exchange. seed: of the rules' probabilities. out: a file for one line per
    action, e.g. sys.stderr. Raises OSError if it cannot listen.
    """

    def __init__(
        self, bootstrap_servers: str, rules: Iterable[Rule] = (), *, seed: int = 0, out: TextIO | None = None
    ) -> None:
        self._addresses = [_address(server) for server in bootstrap_servers.split(",")]
        self._record = Record(out)
        self._fronts = Fronts(Board(self._record), Rules(rules, seed))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire-proxy", daemon=True)

    def __enter__(self) -> WireProxy:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._fronts.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        board = self._fronts.board
        failure = board.failure or (None if self._record.requests() else board.tls)
        if failure is not None and error is None:
            raise WireError("the proxy could not pass something on") from failure

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses at which clients reach the cluster through the proxy."""
        return ",".join(f"{HOST}:{self._fronts.port(address)}" for address in self._addresses)

    @property
    def events(self) -> list[Event]:
        """Return the actions so far."""
        return self._record.events()

    @property
    def requests(self) -> Counter[tuple[str, int]]:
        """Return the number of requests, by API and version, e.g. {("EndTxn", 5): 12}."""
        return self._record.requests()

    def wait_for(self, fits: Callable[[Event], bool], seconds: float = 60.0) -> Event:
        """Return the first event for which fits(event) is true; raises TimeoutError if there is none in time."""
        return self._record.wait_for(fits, seconds)

    def set_rules(self, rules: Iterable[Rule], *, seed: int = 0) -> None:
        """Replace the rules for later requests."""
        self._fronts.rules = Rules(rules, seed)

    def heal(self) -> None:
        """Drop the rules and end all connections, also silent ones and those with something held or delayed."""
        self.set_rules(())
        self._run(self._fronts.end_connections())

    def cut(self, broker: int | None = None) -> None:
        """End all connections to a broker (its node id; by default to all) and refuse new ones until ``restore``."""
        self._run(self._fronts.set_cut(broker, True))

    def restore(self, broker: int | None = None) -> None:
        """Let connections to a broker pass again, by default to all."""
        self._run(self._fronts.set_cut(broker, False))

    async def _open(self) -> None:
        for address in self._addresses:
            self._fronts.open(address)

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    return host, int(port)
