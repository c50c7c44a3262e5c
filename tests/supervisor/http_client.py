"""The client of the HTTP tests: the standard library's."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from penstock import KafkaStreams
from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS


def host_config(state_dir: Path) -> dict[str, Any]:
    """Return the settings of one of several hosts: a port, an address for the others, and a separate disk."""
    port = free_port()
    return {
        "state.dir": str(state_dir),
        "application.server": f"127.0.0.1:{port}",
        "penstock.http.port": port,
        "num.standby.replicas": 1,
    }


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


class HttpClient:
    """Sends requests to one application."""

    def __init__(self, port: int | None, token: str | None = None) -> None:
        assert port is not None
        self.port = port
        self.token = token

    @classmethod
    def of(cls, streams: KafkaStreams, token: str | None = None) -> HttpClient:
        return cls(streams.http_port, token)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Return the response; headers: with _ for -."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request(method, path, body, given | {n.replace("_", "-"): v for n, v in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, {n.lower(): v for n, v in response.getheaders()}, response.read().decode())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON of a successful response."""
        answer = self.ask(path)
        assert answer.status == 200, answer
        return answer.json

    def post(self, path: str, body: bytes | None = None) -> Answer:
        return self.ask(path, "POST", body)
