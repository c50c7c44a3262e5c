"""A database that is away, on a real broker: other tasks continue, and its rows follow when it returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.sinks import PostgresSink
from tests.postgres_server import PostgresDatabase, postgres_server
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
RECORDS = 30


@pytest.mark.parametrize("is_up_at_the_start", [True, False])
def test_other_tasks_continue_while_a_database_is_away(
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_up_at_the_start: bool,
) -> None:
    text, source, other, copied = Serdes.string(), make_topic("in"), make_topic("other"), make_topic("copied")
    producer = Producer({"bootstrap.servers": bootstrap_servers})

    def produce(topic: str) -> None:
        for number in range(RECORDS):
            producer.produce(topic, key="k", value=f"{number}")
        assert producer.flush(PATIENCE_SECONDS) == 0

    with postgres_server() as server, server.database() as database:
        builder = StreamsBuilder()
        sink = PostgresSink(database.dsn, "lines")
        builder.stream(source, key_serde=text, value_serde=text).to_sink(sink, name="lines-sink")
        builder.stream(other, key_serde=text, value_serde=text).to(copied)
        config = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "state.dir": str(tmp_path / "state"),
            "num.stream.threads": 1,
        }
        if not is_up_at_the_start:
            server.kill()
        with KafkaStreams(builder.build(), config) as streams:
            streams.start()
            produce(source)
            if is_up_at_the_start:
                eventually(lambda: written(database) == RECORDS, "the first rows are written")
                server.kill()
                produce(source)
            eventually(lambda: "table lines in PostgreSQL" in caplog.text, "the failure is logged")
            produce(other)
            eventually(lambda: len(list(read_to_end(bootstrap_servers, copied))) == RECORDS, "other tasks continue")
            server.start()
            eventually(lambda: written(database) == RECORDS * (1 + is_up_at_the_start), "the rows follow")
        assert written(database) == RECORDS * (1 + is_up_at_the_start)


def written(database: PostgresDatabase) -> int:
    """Return how many rows there are."""
    if not database.rows("SELECT 1 WHERE to_regclass('lines') IS NOT NULL"):
        return 0
    ((count,),) = database.rows("SELECT count(*) FROM lines")
    return int(count)
