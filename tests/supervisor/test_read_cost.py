"""Guards against slower reads: what the supervisor does for a read of a key over HTTP."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import uvicorn
from typing_extensions import Buffer

from benchmarks.instructions import counted, least, purchases
from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.http.connections import Connection
from penstock.supervisor.http.endpoints import http_app
from penstock.supervisor.http.forwarding import HttpHosts
from penstock.supervisor.http.security import HEADERS, HttpAddress
from penstock.supervisor.http.view import HttpView
from penstock.supervisor.queries.queries import Answers, Queries, Question
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.query.position import Position
from penstock.workers.control.messages import CommandResult
from penstock.workers.queries.store_answers import Reply, Row, StoreRead

TOKEN = "geheim"
READS = 50
REQUEST = b"GET /stores/counts/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer geheim\r\n\r\n"
ROWS = b'"position":{"in":{"0":41}},"rows":[{"key":"a","value":42}]}'
#: In units of the least loop of a count, as tests/test_instructions.py: the count when the limit was set, plus five
#: percent.
LIMIT = 200


class OneThread(Queries):
    """The queries of a supervisor whose only stream thread answers at once."""

    def ask(self, question: Question, answers: Answers) -> None:
        position = Position.from_map({"in": {0: 41}})
        rows = (Row(b"a", b'{"key":"a","value":42}', "0_0"),)
        read = StoreRead(
            Reply.OK, rows=rows, tasks=("0_0",), partition=0, key_serde="string", partitions=1, position=position
        )
        answers.results.append(CommandResult(question(1).id, read))  # type: ignore[union-attr]
        answers.done.set_result(answers.results)


class CountedSends(socket.socket):
    """A socket that counts the system calls that send."""

    sends = 0

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """Send as any socket does."""
        self.sends += 1
        return super().send(data, flags)


async def connected(loop: asyncio.AbstractEventLoop) -> tuple[socket.socket, CountedSends]:
    """Return the client's end of a connection to a server with one store, and the server's end."""
    queries = OneThread("", {}, lambda: 0)
    supervisor: Any = SimpleNamespace(
        states=SimpleNamespace(state=ApplicationState.RUNNING), queries=queries, client_id="app"
    )
    administration: Any = SimpleNamespace(host_actions={})
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "unused:9092", "penstock.http.token": TOKEN})
    view = HttpView(supervisor, administration, config, HttpHosts(TOKEN))
    app = http_app(view, HttpAddress("127.0.0.1", 0, TOKEN, frozenset()), asyncio.Event())
    served: Any = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", headers=[*HEADERS])
    served.load()
    state = uvicorn.server.ServerState()
    state.default_headers = served.encoded_headers
    end, ours = socket.socketpair()
    theirs = CountedSends(fileno=end.detach())
    await loop.connect_accepted_socket(lambda: Connection(served, state, {}, loop), theirs)
    ours.setblocking(False)
    return ours, theirs


async def read(line: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    await loop.sock_sendall(line, REQUEST)
    data = b""
    while not data.endswith(ROWS):
        data += await loop.sock_recv(line, 65_536)
    assert data.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_read_costs_no_more_instructions_than_before() -> None:
    async def read_all(times: int) -> None:
        for _ in range(times):
            await read(line, loop)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        line, _ = runner.run(connected(loop))
        with line:
            runner.run(read_all(READS))  # imports, and finds the owner of the key
            number = counted(lambda: runner.run(read_all(READS)))
    assert number / counted(least(purchases(0, READS))) < LIMIT


def test_a_response_is_sent_at_once() -> None:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        line, theirs = runner.run(connected(loop))
        with line:
            for _ in range(READS):
                runner.run(read(line, loop))
            assert theirs.sends == READS
