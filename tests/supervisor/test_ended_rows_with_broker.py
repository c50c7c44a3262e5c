"""Rows with a ttl end once each on a real broker, also after a restore; tables behind them and changelogs agree."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import KafkaStreams, Materialized, Punctuation, Serdes, StreamsBuilder, Ttl, agg
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Application:
    """Counts by key with a ttl of the wall clock, and the rows that there are."""

    def __init__(self, servers: str, application_id: str, make_topic: Callable[..., str], state_dir: Path) -> None:
        self.servers, self.source, self.counts, self.alive = servers, make_topic("in", 2), *map(make_topic, "ca")
        self.state_dir = state_dir
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": servers,
            "state.dir": str(state_dir),
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "statestore.cache.max.bytes": 0,  # a row that ends before the next commit is sent, too
            "penstock.static.membership": False,  # a member without its state directory would wait for the old one
        }

    def streams(self, ttl: timedelta) -> KafkaStreams:
        builder = StreamsBuilder()
        kept = Materialized("rows", ttl=Ttl(ttl, Punctuation.WALL_CLOCK_TIME))
        rows = builder.stream(self.source, **TEXTS).group_by_key().aggregate({"n": agg.count()}, store=kept)
        rows.to_stream().map_values(lambda row: str(row and row["n"])).to(self.counts, **TEXTS)
        alive = rows.group_by(lambda key, row: ("all", row), key_serde=Serdes.string(), value_serde=Serdes.json())
        alive.count().to_stream().map_values(str).to(self.alive, **TEXTS)
        return KafkaStreams(builder.build(), self.config)

    def produce(self, keys: str) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for key in keys:
            producer.produce(self.source, "v", key)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def sent(self, topic: str) -> list[tuple[str, str]]:
        found = read_to_end(self.servers, topic)
        return [((message.key() or b"").decode(), (message.value() or b"").decode()) for message in found]

    def has_ended(self, keys: str, alive: int) -> bool:
        """Return whether rows of these keys have ended so far, and how many are left."""
        ended = sorted(key for key, value in self.sent(self.counts) if value == "None")
        return ended == sorted(keys) and self.sent(self.alive)[-1:] == [("all", str(alive))]


@pytest.fixture
def application(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> Application:
    return Application(bootstrap_servers, application_id, make_topic, tmp_path / "state")


def test_rows_end_once_each(application: Application) -> None:
    with application.streams(timedelta(seconds=1)) as streams:
        streams.start()
        application.produce("abcd")
        eventually(lambda: application.has_ended("abcd", alive=0), "four rows end")
    with application.streams(timedelta(hours=1)) as streams:  # two rows that are on disk when it stops
        streams.start()
        application.produce("aab")
        eventually(lambda: {("a", "2"), ("b", "1")} <= set(application.sent(application.counts)[8:]), "two rows begin")
        eventually(lambda: application.sent(application.alive)[-1] == ("all", "2"), "they are counted")
    shutil.rmtree(application.state_dir)
    with application.streams(timedelta(seconds=1)) as streams:  # they keep their hour, others live for a second
        streams.start()
        application.produce("bc")
        eventually(lambda: application.has_ended("abbccd", alive=1), "two rows end")
    changelog = f"{application.config['application.id']}-rows-changelog"
    last = {message.key(): message.value() for message in read_to_end(application.servers, changelog)}
    assert last == {b"a": b'{"n":2}', b"b": None, b"c": None, b"d": None}
