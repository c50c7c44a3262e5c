"""Watches the application's other hosts, so that a lost one's tasks do not wait for its session to time out.

A broken connection to a host's application.server does not show what has happened. The next attempt does: if the host's
kernel refuses it, twice, the supervisor there is gone, and its stream threads with it. So the address must be the
process's own port, and not that of a proxy. A host that is frozen, or cut off from the network, does not answer, but
may still process: its session timeout decides, as without a watch.

A host that stops says goodbye. If the goodbye is missed, between two requests, its tasks move, as with a lost host.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from http.client import OK, SERVICE_UNAVAILABLE, HTTPConnection, HTTPException
from ipaddress import IPv4Address, IPv6Address, ip_address

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock.workers.group.streams_metadata import HostInfo

from .forwarding import host_headers

logger = logging.getLogger(__name__)
Address = IPv4Address | IPv6Address

#: Number of hosts that each one watches: those that follow it in the order of their addresses, so that the number of
#: connections grows with the group and not with its square.
WATCHED_HOSTS = 3
#: Seconds after which an uneventful watch is answered, and asked for again.
WATCH_SECONDS = 60
#: Seconds that a host may take for a connection, and for an answer longer than WATCH_SECONDS.
ANSWER_SECONDS = 10
#: Seconds before the first attempt to reach a host whose connection broke, and the longest between two later ones.
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.05, 1.0
#: How many refusals in a row mean that a host is lost, and that one which has never answered is reported.
LOST_REFUSALS, UNKNOWN_REFUSALS = 2, 10
#: The path of the endpoint, and its answers.
PATH = "/watch"
STAYS, STOPS = b'{"stopping":false}', b'{"stopping":true}'


class HostWatch:
    """Watches the next hosts, if penstock.host.watch is set.

    lost: called with the host:port of a host that has ended without a goodbye, from any thread. Raises ConfigError if
    a setting is missing that it needs.
    """

    def __init__(self, config: StreamsConfig, lost: Callable[[str], None]) -> None:
        self._watched: dict[HostInfo, WatchedHost] = {}
        self._lost = lost
        self._headers = host_headers(config["penstock.http.token"])
        self._own: HostInfo | None = None
        if config["penstock.host.watch"]:
            _check(config)
            self._own = HostInfo.parse(config["application.server"])

    def on_hosts(self, hosts: Collection[HostInfo]) -> None:
        """Watch those of the group's current hosts that follow this one."""
        if self._own is None:
            return
        wanted = _next(self._own, hosts)
        for host in self._watched.keys() - wanted:
            self._watched.pop(host).end()
        for host in wanted - self._watched.keys():
            self._watched[host] = WatchedHost(host, self._headers, self._lost)

    def stop(self) -> None:
        """End all connections."""
        self._own = None
        while self._watched:
            self._watched.popitem()[1].end()


def _check(config: StreamsConfig) -> None:
    if missing := [name for name in ("application.server", "penstock.http.port") if config[name] in (None, "")]:
        raise ConfigError(f"penstock.host.watch=true also needs {' and '.join(missing)}.")
    own, port, host = HostInfo.parse(config["application.server"]), config["penstock.http.port"], _http_host(config)
    if own.port != port:
        raise ConfigError(
            f"penstock.host.watch=true needs the same port in application.server={own.host}:{own.port} and "
            f"penstock.http.port={port}: other hosts must watch this process's own port, and not a proxy, "
            "which may restart while the application runs."
        )
    if port == 0:
        raise ConfigError(
            f"penstock.host.watch=true needs a port that others know: application.server={own.host}:0 and "
            "penstock.http.port=0 mean any free one. Set both to the same number."
        )
    literal = _literal(own.host)
    if not own.host or (literal is not None and literal.is_unspecified):
        raise ConfigError(
            f"penstock.host.watch=true needs an address in application.server={own.host}:{own.port} that names this "
            "host to others. Set its name or its IP address; only penstock.http.host may be all addresses."
        )
    if not _is_served(own.host, host):
        raise ConfigError(
            f"penstock.host.watch=true needs a penstock.http.host that others reach: nothing listens at "
            f"application.server={own.host}:{own.port} while it is {host}, unless a proxy does, which may restart "
            "while the application runs. Set penstock.http.host to 0.0.0.0, or both to the same address of this host."
        )


def _is_served(own_host: str, http_host: str) -> bool:
    """Return whether connections to the host of application.server can reach a server at penstock.http.host."""
    addresses = _addresses(http_host)
    return not addresses or any(_is_served_at(own_host, address) for address in addresses)  # the server reports none


def _is_served_at(own_host: str, address: Address) -> bool:
    """Return whether a server at an address serves the host of application.server, as far as this host knows.

    A name that cannot be resolved now, or only to loopback addresses (Debian's /etc/hosts has 127.0.1.1 for the host's
    own name), may be one that others resolve to the address.
    """
    literal = _literal(own_host)
    if address.is_unspecified:  # :: also serves IPv4
        return literal is None or address.version >= literal.version
    own = _addresses(own_host)
    if literal is not None or address.is_loopback or own_host.lower() == "localhost":
        return address in own
    elsewhere = {found for found in own if not found.is_loopback}
    return address in elsewhere or not elsewhere


def _http_host(config: StreamsConfig) -> str:
    return str(config["penstock.http.host"]).strip("[]")


def _literal(host: str) -> Address | None:
    """Return an IP address, None for a name."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def _addresses(host: str) -> set[Address]:
    """Return an IP address itself, or the addresses of a name; none if it cannot be resolved."""
    if (literal := _literal(host)) is not None:
        return {literal}
    try:
        return {ip_address(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        return set()


def _next(own: HostInfo, hosts: Collection[HostInfo]) -> set[HostInfo]:
    others = sorted(set(hosts) - {own})
    after = [host for host in others if host > own]
    return set((after + others)[:WATCHED_HOSTS])


class WatchedHost:
    """One host, and the thread that has the connection to it. headers: of each request; lost: see HostWatch."""

    def __init__(self, host: HostInfo, headers: dict[str, str], lost: Callable[[str], None]) -> None:
        self._host = host
        self._name = f"{host.host}:{host.port}"
        self._headers = headers
        self._lost = lost
        #: True if it has answered, and has neither said goodbye nor been lost since.
        self._is_here = False
        self._refusals: set[int] = set()
        self._refused_connections = 0  # in a row
        self._ended = threading.Event()
        self._connection: HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-watch-{self._name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching; does not wait."""
        self._ended.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):  # it may be closed just now
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while not self._ended.wait(pause):
            pause = RETRY_SECONDS if self._watch() else min(2 * pause, RETRY_SECONDS_MAX)

    def _watch(self) -> bool:
        """Watch over one connection until it ends; return whether it broke, so that the next attempt must be soon."""
        try:
            connection = self._connect()
        except (OSError, ExceptionGroup) as error:
            if _is_refused(error):
                self._on_refused()
            else:
                logger.debug("The host %s cannot be reached: %r", self._name, error)
            return False
        self._refused_connections = 0
        with closing(connection):
            return self._ask(connection)

    def _connect(self) -> HTTPConnection:
        """Return a connection; raises an ExceptionGroup with an OSError for each of the host's addresses."""
        name, port = self._host.host.strip("[]"), self._host.port
        connection = HTTPConnection(name, port)
        connection.auto_open = 0  # a second connection would be refused in the middle of a request
        connection.sock = socket.create_connection((name, port), ANSWER_SECONDS, all_errors=True)
        connection.sock.settimeout(WATCH_SECONDS + ANSWER_SECONDS)
        self._connection = connection
        return connection

    def _ask(self, connection: HTTPConnection) -> bool:
        """Ask until the host says goodbye or the connection ends; return whether it broke."""
        answered = False
        try:
            while not self._ended.is_set():
                connection.request("GET", PATH, headers=self._headers)
                response = connection.getresponse()
                answered = self._is_here = response.status == OK
                self._refusals |= {0} if answered else set()  # what refuses it later has listened once
                said = response.read()
                if said != STAYS:
                    self._is_here = False
                    self._tell(response.status, said)
                    return False
        except (OSError, HTTPException) as error:
            logger.debug("The connection to the host %s broke: %r", self._name, error)
        return answered

    def _tell(self, status: int, said: bytes) -> None:
        if said == STOPS:
            logger.info("The host %s stops", self._name)
        elif status not in (*self._refusals, SERVICE_UNAVAILABLE):  # the latter is soon over
            self._refusals.add(status)
            logger.warning(
                "The host %s cannot be watched, its tasks would wait for its session to time out: HTTP status %d. All "
                "hosts need the same version, penstock.http.token, and application.server as their own address",
                self._name,
                status,
            )

    def _on_refused(self) -> None:
        self._refused_connections += 1
        if self._ended.is_set():
            return
        if not self._is_here:
            if self._refused_connections == UNKNOWN_REFUSALS and not self._refusals:
                self._refusals.add(0)
                logger.warning(
                    "The host %s cannot be watched, its tasks would wait for its session to time out: it is in the "
                    "group, but no program listens there. Check its application.server, penstock.http.port and "
                    "penstock.http.host",
                    self._name,
                )
        elif self._refused_connections == LOST_REFUSALS:
            self._is_here = False
            logger.warning("The host %s is lost: its connection broke, and no program listens there now", self._name)
            self._lost(self._name)


def _is_refused(error: Exception) -> bool:
    """Return whether each of a host's addresses has refused a connection; one that does not answer may be alive."""
    return isinstance(error, ExceptionGroup) and error.split(ConnectionRefusedError)[1] is None
