"""Rows that a database refuses, on a real broker: their dead letters are committed before the rest of the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.sinks import PostgresSink
from tests.postgres_server import PostgresDatabase
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
RECORDS = 60


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_refused_rows_are_dead_letters_and_all_others_are_written(
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    database: PostgresDatabase,
    guarantee: str,
) -> None:
    database.execute("CREATE TABLE numbers (key text, value bigint CHECK (value % 10 <> 3))")
    source, letters = make_topic("in"), make_topic("letters")
    builder = StreamsBuilder()
    numbers = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.json(int))
    numbers.to_sink(PostgresSink(database.dsn, "numbers", key="key"), name="numbers-sink")
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "num.stream.threads": 1,
        "processing.guarantee": guarantee,
        "processing.exception.handler": "log_and_continue",
        "errors.dead.letter.queue.topic.name": letters,
        # Only the commit that the sink requests for its dead letters comes in time.
        "commit.interval.ms": 600_000,
        "producer.transaction.timeout.ms": 700_000,
    }
    good = [number for number in range(RECORDS) if number % 10 != 3]
    with KafkaStreams(builder.build(), config) as streams:
        streams.start()
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        for number in range(RECORDS):
            producer.produce(source, key=str(number), value=str(number))
        assert producer.flush(PATIENCE_SECONDS) == 0
        eventually(lambda: len(written(database)) >= len(good), lambda: f"{len(written(database))} rows are written")
        found = list(read_to_end(bootstrap_servers, letters))
    assert written(database) == good
    assert sorted(int(letter.key() or b"") for letter in found) == [n for n in range(RECORDS) if n % 10 == 3]
    messages = [dict(letter.headers() or ())["__streams.errors.message"] for letter in found]
    assert all(isinstance(message, bytes) and b"(SQLSTATE 23514)" in message for message in messages)
    assert database.rows("SELECT next_offset FROM penstock_offsets") == [(RECORDS,)]


def written(database: PostgresDatabase) -> list[int]:
    """Return the values of all rows, sorted."""
    return [value for (value,) in database.rows("SELECT value FROM numbers ORDER BY value")]
