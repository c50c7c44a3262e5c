"""Queries the application's other hosts, at their application.server."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from typing_extensions import override

from penstock.topology.query.position import Position
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.workers.control.messages import ReadStore
from penstock.workers.group.streams_metadata import HostInfo
from penstock.workers.queries.store_answers import PartitionResults, Row

from ..queries.holds import CommandedHosts, Part
from ..queries.state_query import QueriedHosts
from ..queries.store_routing import RETRY_SECONDS, Found, QueryError, RemoteHosts, Scans, read_position
from ..queries.store_scans import Table
from ..sql.sql_result import METADATA
from . import state_query
from .parameters import bound_text

#: Marks a request from another host of the application, which is answered from this host's tasks alone. Otherwise two
#: hosts that consider each other the owner would forward a request forever.
FORWARDED = "X-Penstock-Forwarded"
#: The content type of batches of Arrow.
ARROW = "application/vnd.apache.arrow.stream"
#: Maximum size of another host's response.
ANSWER_BYTES_MAX = 64 << 20
_SAME = ("limit", "partition", "max_lag", "time_from", "time_to", "prefix", "after")
#: The path of what a host does for another one of its application, without the name of the command.
HOST_COMMANDS_PATH = "/host"
#: The last part of the path of a subscription; a key of this name is written with percent encoding.
CHANGES = "changes"


def host_headers(token: str | None) -> dict[str, str]:
    """Return the headers of a request to another host. token: penstock.http.token, the same on all hosts."""
    return {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})


class HttpHosts(RemoteHosts, QueriedHosts, CommandedHosts):
    """token: this host's token; the other hosts must have the same."""

    def __init__(self, token: str | None) -> None:
        self._headers = {FORWARDED: "1", **host_headers(token)}

    @override
    def read(self, host: HostInfo, request: ReadStore, timeout: float) -> Found:
        """Query a host by HTTP. Raises QueryError with 503 if it cannot be reached."""
        if request.columns is not None:
            scan = self._open(host, path_of(request), timeout)
            read = scan.read
            return Found(
                [], read["tasks"], position=_position(read), complete=read["complete"], scans=Scans([], [scan])
            )
        status, answer = self._get(host, path_of(request), timeout)
        if status != http.client.OK:
            raise refusal(host, status, answer)
        rows = [Row(base64.b64decode(order), orjson.dumps(row)) for order, row in answer["ordered_rows"]]
        changelog = {int(partition): at for partition, at in answer.get("changelog", {}).items()}
        return Found(
            rows,
            answer["tasks"],
            answer["lag"],
            answer["complete"],
            after=answer.get("after"),
            position=_position(answer),
            changelog=changelog,
        )

    @override
    def query(self, host: HostInfo, request: StateQueryRequest, rows_max: int, timeout: float) -> PartitionResults:
        status, answer = self._get(host, state_query.path_of(request, rows_max), timeout)
        if status != http.client.OK:
            raise refusal(host, status, answer)
        return state_query.results_of(answer)

    @override
    def columns(self, host: HostInfo, store: str, timeout: float) -> Table:
        scan = self._open(host, f"/stores/{quote(store, safe='')}?limit=0", timeout)
        scan.close()
        return Table(scan.schema.remove_metadata(), scan.read["key_order"], scan.read["sessions"])

    @override
    def carry_out(self, host: HostInfo, command: str, arguments: Mapping[str, Any], timeout: float) -> Part:
        path = f"{HOST_COMMANDS_PATH}/{command}"
        status, answer = self._request(host, "POST", path, timeout, orjson.dumps(arguments))
        if status != http.client.OK:
            raise refusal(host, status, answer)
        part: Part = answer
        return part

    def _open(self, host: HostInfo, path: str, timeout: float) -> ArrowStream:
        connection = http.client.HTTPConnection(host.host.strip("[]"), host.port, timeout=timeout)
        try:
            connection.request("GET", path, headers={**self._headers, "Accept": ARROW})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise refusal(host, response.status, orjson.loads(response.read(ANSWER_BYTES_MAX)))
            return ArrowStream(host, connection, response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise unreachable(host, error) from error
        except BaseException:
            connection.close()
            raise

    def _get(self, host: HostInfo, path: str, timeout: float) -> tuple[int, Any]:
        return self._request(host, "GET", path, timeout)

    def _request(
        self, host: HostInfo, method: str, path: str, timeout: float, body: bytes | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(host.host.strip("[]"), host.port, timeout=timeout)
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX)
            return response.status, orjson.loads(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise unreachable(host, error) from error
        finally:
            connection.close()


class ArrowStream:
    """The rows of another host's tasks, read as they arrive. read: what the host says of them; see arrow.py.

    Raises ValueError for a response that is not Arrow.
    """

    def __init__(
        self, host: HostInfo, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        import pyarrow as pa

        self._host = host
        self._connection = connection
        self._reader = pa.ipc.open_stream(response)
        self.schema = self._reader.schema
        self.read: dict[str, Any] = orjson.loads((self.schema.metadata or {})[METADATA])

    def __iter__(self) -> Iterator[bytes]:
        """Yield the batches. Raises QueryError if the other host does not send all of them."""
        try:
            for batch in self._reader:
                yield batch.serialize().to_pybytes()
        except (OSError, http.client.HTTPException, ValueError) as error:
            where = f"{self._host.host}:{self._host.port}"
            text = f"{where} has not sent all of its rows: {error or type(error).__name__}. Try again."
            raise QueryError(503, "INCOMPLETE", text, RETRY_SECONDS) from error

    def close(self) -> None:
        """Close the connection: the other host then closes its scan."""
        self._connection.close()


def refusal(host: HostInfo, status: int, answer: Any) -> QueryError:
    """Return the error of another host's response."""
    error: dict[str, Any] = answer.get("error", {}) if isinstance(answer, dict) else {}
    message = f"{host.host}:{host.port}: {error.get('message', f'HTTP {status}')}"
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        message += " All hosts of an application need the same penstock.http.token."
        return QueryError(502, "HOST_REFUSED", message)
    retry = error.get("retry_after_seconds")
    details = {name: error[name] for name in ("tasks", "position") if name in error}
    return QueryError(status, str(error.get("code", "HOST_FAILED")), message, retry, **details)


def unreachable(host: HostInfo, error: Exception) -> QueryError:
    """Return the error for a host that does not answer."""
    text = f"{host.host}:{host.port}, which has tasks, cannot be reached: {error or type(error).__name__}"
    return QueryError(503, "HOST_UNREACHABLE", text, RETRY_SECONDS)


def _position(answer: Mapping[str, Any]) -> Position | None:
    """Return the position in a response; JSON has text as keys."""
    return read_position(answer["position"])


def path_of(request: ReadStore) -> str:
    """Return path and query string of a request, as endpoints.py reads them."""
    names = {name: getattr(request, name) for name in _SAME} | {"from": request.key_from, "to": request.key_to}
    names["isolation"] = None if request.isolation is None else request.isolation.value
    names["at_least"] = bound_text(request.at_least)
    if request.columns is not None:
        names |= {"limit": None, "schema": base64.urlsafe_b64encode(request.columns).decode()}
    names |= {name: "true" for name in ("reverse", "everywhere", "changelog") if getattr(request, name)}
    query = urlencode({name: value for name, value in names.items() if value is not None})
    key = "" if request.key is None else f"/{quote(request.key, safe='')}"
    if request.key == CHANGES:
        key = f"/%{ord(CHANGES[0]):x}{CHANGES[1:]}"
    return f"/stores/{quote(request.store, safe='')}{key}?{query}"
