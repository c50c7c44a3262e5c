"""Queries the application's other hosts, at their application.server."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from typing_extensions import override

from penstock.topology.query.position import Position
from penstock.workers.control.messages import ReadStore
from penstock.workers.group.streams_metadata import HostInfo
from penstock.workers.queries.store_answers import Row

from ..queries.store_routing import RETRY_SECONDS, Found, QueryError, RemoteHosts

#: Marks a request from another host of the application, which is answered from this host's tasks alone. Otherwise two
#: hosts that consider each other the owner would forward a request forever.
FORWARDED = "X-Penstock-Forwarded"
#: Maximum size of another host's response.
ANSWER_BYTES_MAX = 64 << 20
_SAME = ("limit", "partition", "max_lag", "time_from", "time_to", "prefix")


def host_headers(token: str | None) -> dict[str, str]:
    """Return the headers of a request to another host. token: penstock.http.token, the same on all hosts."""
    return {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})


class HttpHosts(RemoteHosts):
    """token: this host's token; the other hosts must have the same."""

    def __init__(self, token: str | None) -> None:
        self._headers = {FORWARDED: "1", **host_headers(token)}

    @override
    def read(self, host: HostInfo, request: ReadStore, timeout: float) -> Found:
        """Query a host by HTTP. Raises QueryError with 503 if it cannot be reached."""
        status, answer = self._get(host, path_of(request), timeout)
        if status == http.client.OK:
            rows = [Row(base64.b64decode(order), orjson.dumps(row)) for order, row in answer["ordered_rows"]]
            return Found(rows, answer["tasks"], answer["lag"], answer["complete"], position=_position(answer))
        error: dict[str, Any] = answer.get("error", {}) if isinstance(answer, dict) else {}
        message = f"{host.host}:{host.port}: {error.get('message', f'HTTP {status}')}"
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            message += " All hosts of an application need the same penstock.http.token."
            raise QueryError(502, "HOST_REFUSED", message)
        retry = error.get("retry_after_seconds")
        details = {name: error[name] for name in ("tasks", "position") if name in error}
        raise QueryError(status, str(error.get("code", "HOST_FAILED")), message, retry, **details)

    def _get(self, host: HostInfo, path: str, timeout: float) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(host.host.strip("[]"), host.port, timeout=timeout)
        try:
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX)
            return response.status, orjson.loads(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = f"{host.host}:{host.port}, which has the task, cannot be reached: {error or type(error).__name__}"
            raise QueryError(503, "HOST_UNREACHABLE", text, RETRY_SECONDS) from error
        finally:
            connection.close()


def _position(answer: Mapping[str, Any]) -> Position | None:
    """Return the position in a response; JSON has text as keys."""
    offsets: Mapping[str, Mapping[str, int]] | None = answer["position"]
    if offsets is None:
        return None
    return Position.from_map({topic: {int(p): at for p, at in mine.items()} for topic, mine in offsets.items()})


def path_of(request: ReadStore) -> str:
    """Return path and query string of a request, as endpoints.py reads them."""
    names = {name: getattr(request, name) for name in _SAME} | {"from": request.key_from, "to": request.key_to}
    names["isolation"] = None if request.isolation is None else request.isolation.value
    names["at_least"] = (
        ",".join(f"{at.topic}-{at.partition}:{to}" for at, to in request.at_least.offsets.items()) or None
    )
    names |= {name: "true" for name in ("reverse", "everywhere") if getattr(request, name)}
    query = urlencode({name: value for name, value in names.items() if value is not None})
    key = "" if request.key is None else f"/{quote(request.key, safe='')}"
    return f"/stores/{quote(request.store, safe='')}{key}?{query}"
