"""Committed reads while processes are killed: each answer equals a copy that has stopped at the position it names.

The reads are those of a key, a range, and interactive queries v2, in process and over HTTP. With exactly-once, because
otherwise a crash leaves rows that are ahead of their position.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from broker_stage import KEYS, PARTITIONS, Counting, replaced, shared_by, tasks
from http_client import HttpClient
from written import Written

from penstock import (
    InvalidStateStoreError,
    IsolationLevel,
    KafkaStreams,
    KeyQuery,
    Position,
    RangeQuery,
    StateQueryRequest,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
COMMITTED = IsolationLevel.READ_COMMITTED
#: Answers of each kind of read before, and after, each kill.
ANSWERS = 5

#: What a read has seen: the counts of some keys, and the position.
Seen = tuple[dict[str, int], Position]
Read = Callable[[random.Random], list[Seen]]


class NotNowError(Exception):
    """A response that says to try again."""


PASSING = (NotNowError, InvalidStateStoreError, TimeoutError)


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    made = Counting(
        bootstrap_servers, application_id, make_topic("in", PARTITIONS), make_topic("out", PARTITIONS), tmp_path / "one"
    )
    made.config |= {
        "penstock.http.port": 0,
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": 100,
        "num.standby.replicas": 1,
    }
    return made


class Reader(threading.Thread):
    """Reads again and again, and keeps the answers that are not those of their position."""

    def __init__(self, read: Read, written: Written, source: str, seed: int) -> None:
        super().__init__()
        self._read, self._written, self._source = read, written, source
        self._chance = random.Random(seed)
        self._ended = threading.Event()
        self.answers = self.errors = 0
        self.wrong: list[str] = []
        self.last_error = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            try:
                answer = self._read(self._chance)
                self.wrong += [fault for seen in answer if (fault := self._fault(*seen)) is not None]
                self.answers += 1
            except PASSING as error:
                self.errors += 1
                self.last_error = repr(error)
            except BaseException as error:  # noqa: BLE001  the test shows it
                self.wrong.append(repr(error))
                return

    def __str__(self) -> str:
        return f"{self.answers} answers, {self.errors} errors, at last {self.last_error}; wrong: {self.wrong[:2]}"

    def _fault(self, counts: dict[str, int], position: Position) -> str | None:
        wanted: Counter[str] = self._written.counted_at(position, self._source)
        wrong = {key: (count, wanted[key]) for key, count in counts.items() if count != wanted[key]}
        return f"at {position}: {wrong}" if wrong else None


def reads(streams: KafkaStreams, source: str) -> dict[str, Read]:
    """Return the kinds of reads by name. A range has all keys, so that a missing one counts as 0."""
    http = HttpClient.of(streams)
    no_counts = dict.fromkeys((f"key-{number}" for number in range(KEYS)), 0)

    def position(offsets: dict[str, dict[str, int]] | None) -> Position:
        assert offsets is not None
        return Position.from_map({topic: {int(p): at for p, at in of.items()} for topic, of in offsets.items()})

    def ask(path: str) -> Any:
        answer = http.ask(f"/stores/counts{path}isolation=read_committed&limit=1000")
        if answer.status in (503, 404):
            raise NotNowError(answer)
        assert answer.status == 200, answer
        return answer.json

    def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
        return {row["key"]: row["value"] for row in rows}

    def key_over_http(chance: random.Random) -> list[Seen]:
        found = ask(f"/key-{chance.randrange(KEYS)}?")
        return [(counts(found["rows"]), position(found["position"]))]

    def range_over_http(_: random.Random) -> list[Seen]:
        found = ask("?")
        return [(no_counts | counts(found["rows"]), position(found["position"]))]

    def queries_over_http(_: random.Random) -> list[Seen]:
        found = ask("?query=RangeQuery&require_active=true&")
        if any("failure" in part for part in found["partitions"].values()):
            raise NotNowError(found)
        assert len(found["partitions"]) == PARTITIONS
        parts = [(counts(part["result"]), position(part["position"])) for part in found["partitions"].values()]
        whole = no_counts | {key: count for part, _ in parts for key, count in part.items()}
        return [*parts, (whole, position(found["position"]))]

    def range_in_process(_: random.Random) -> list[Seen]:
        found = streams.store("counts", isolation=COMMITTED).all()
        assert found.position is not None
        return [(no_counts | dict(found), found.position)]

    def queries_in_process(chance: random.Random) -> list[Seen]:
        key = f"key-{chance.randrange(KEYS)}"
        request = StateQueryRequest.in_store("counts").with_query(
            chance.choice([KeyQuery.with_key(key), RangeQuery.with_no_bounds()])
        )
        found = streams.state_query(request.with_isolation_level(COMMITTED)).partition_results
        one = isinstance(request.query, KeyQuery)
        good = [(part.value, part.position) for part in found.values() if part.is_success and part.position is not None]
        return [({} if value is None else {key: value} if one else dict(value), at) for value, at in good]

    made = (key_over_http, range_over_http, queries_over_http, range_in_process, queries_in_process)
    return {read.__name__: read for read in made}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_committed_reads_are_those_of_their_position_while_processes_are_killed(counting: Counting, seed: int) -> None:
    chance = random.Random(seed)
    with counting.streams(2) as streams, Written(counting) as written:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        readers = {
            name: Reader(read, written, counting.source, seed) for name, read in reads(streams, counting.source).items()
        }

        def read_on() -> None:
            before = {name: reader.answers for name, reader in readers.items()}
            eventually(
                lambda: all(
                    reader.answers >= before[name] + ANSWERS or reader.wrong for name, reader in readers.items()
                ),
                lambda: "\n".join(
                    [f"{streams.state}: {streams.status()}", *(f"{name}: {each}" for name, each in readers.items())]
                ),
            )

        for reader in readers.values():
            reader.start()
        try:
            read_on()
            for _ in range(2):
                victim = chance.choice(streams.status())
                owned = tasks(streams.status())
                os.kill(victim.pid, signal.SIGKILL)
                read_on()
                eventually(lambda: replaced(streams.status(), victim, owned), "it is replaced")  # noqa: B023
                streams.add_stream_thread()
                eventually(lambda: shared_by(streams, 3), "tasks have moved")
                streams.remove_stream_thread()
                eventually(lambda: shared_by(streams, 2), "tasks have moved back")
            read_on()
        finally:
            for reader in readers.values():
                reader.__exit__()
        assert {name: reader.wrong[:2] for name, reader in readers.items() if reader.wrong} == {}
        assert sum(reader.errors for reader in readers.values()) > 0, "reads met the kills"
