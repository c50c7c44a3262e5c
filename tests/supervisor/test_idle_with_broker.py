"""Windows of quiet topics close on a real broker: by the wall clock, or with the other partitions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import IdleTimeout, KafkaStreams, Serdes, StreamsBuilder, Suppressed, TimeWindows
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
SIZE = timedelta(seconds=2)


class Application:
    """Counts in windows, and passes only final counts on."""

    def __init__(self, servers: str, application_id: str, make_topic: Callable[..., str], state_dir: Path) -> None:
        self.servers, self.source, self.sink = servers, make_topic("in", 2), make_topic("out", 1)
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": servers,
            "state.dir": str(state_dir),
            "commit.interval.ms": 100,
        }

    def streams(self, timeout: Any = None, wall_clock: Any = None) -> KafkaStreams:
        builder = StreamsBuilder()
        stream = builder.stream(self.source, **TEXTS, idle_timeout=timeout)
        keyed = stream.select_key(lambda key, value: value)  # there is a repartition topic, with another sub-topology
        windows = keyed.group_by_key(**TEXTS).windowed_by(TimeWindows.of_size_with_no_grace(SIZE))
        final = windows.count().suppress(Suppressed.until_window_closes(wall_clock=wall_clock)).to_stream()
        final.map(lambda window, count: (window.key, f"{window.start} {count}")).to(self.sink, **TEXTS)
        return KafkaStreams(builder.build(), self.config)

    def produce(self, partition: int, value: str, timestamp: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.source, value, "k", partition=partition, timestamp=timestamp)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def abort(self, partition: int) -> None:
        """Write a record in a transaction that is aborted: the partition ends with what no application reads."""
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": self.source})
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce(self.source, "aborted", "k", partition=partition, timestamp=900_000)
        assert producer.flush(PATIENCE_SECONDS) == 0
        producer.abort_transaction(PATIENCE_SECONDS)

    def results(self) -> list[str]:
        return sorted((message.value() or b"").decode() for message in read_to_end(self.servers, self.sink))


@pytest.fixture
def application(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> Application:
    return Application(bootstrap_servers, application_id, make_topic, tmp_path)


@pytest.mark.parametrize("given_to", ["timeout", "wall_clock"])
def test_windows_close_without_another_record(application: Application, given_to: str) -> None:
    with application.streams(**{given_to: timedelta(seconds=1)}) as streams:
        streams.start()
        application.produce(0, "a", 100_000)
        application.produce(1, "b", 200_000)
        eventually(lambda: application.results() == ["100000 1", "200000 1"], "both windows close")


def test_ends_of_transactions_are_not_records(application: Application) -> None:
    """The repartition topic ends with a marker, the input with an aborted record, too."""
    application.config["processing.guarantee"] = "exactly_once_v2"
    with application.streams(timedelta(seconds=1)) as streams:
        streams.start()
        for partition, value in ((0, "a"), (1, "b")):
            application.produce(partition, value, 100_000)
            application.abort(partition)
        eventually(lambda: application.results() == ["100000 1"] * 2, "both windows close")


def test_a_quiet_partition_follows_the_others(application: Application) -> None:
    with application.streams(IdleTimeout(timedelta(seconds=1), "others")) as streams:
        streams.start()
        keys = [f"key-{number}" for number in range(10)]  # of both partitions of the repartition topic
        for key in keys:
            application.produce(0, key, 100_000)
        quiet = keys[0]
        application.produce(0, quiet, 500_000)
        expected = ["100000 1"] * 10
        eventually(lambda: application.results() == expected, "the windows of the other keys close, too")
