"""Stores of a running application, read by a program: global ones, and errors that a retry cannot fix."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker_stage import PARTITIONS, produce, read_now, shared_by, tasks

from penstock import (
    KafkaStreams,
    Serdes,
    StateStoreTypeError,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    UnknownStateStoreError,
)
from penstock.topology.errors import InvalidStateStoreError
from tests.waiting import eventually

pytestmark = pytest.mark.broker
TEXT = Serdes.string()


def has_counted(streams: KafkaStreams) -> bool:
    return read_now(lambda: streams.store("counts").get("k1")) == 1


def with_two_threads(application_id: str, bootstrap_servers: str, folder: Path) -> dict[str, object]:
    """Return the configuration of an application; folder: of its state."""
    return {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(folder / "state"),
        "num.stream.threads": 2,
        "commit.interval.ms": 100,
    }


@pytest.fixture
def streams(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> Iterator[KafkaStreams]:
    """A running application with a table, windows and a global table, in two stream threads."""
    source, lookup = make_topic("in", partitions=2), make_topic("names")
    builder = StreamsBuilder()
    grouped = builder.stream(source, key_serde=TEXT, value_serde=TEXT).group_by_key()
    grouped.count(store="counts")
    grouped.windowed_by(TimeWindows(1_000)).count(store="windows")
    builder.global_table(lookup, key_serde=TEXT, value_serde=TEXT, store="names")
    produce(bootstrap_servers, source, "a", "b")
    produce(bootstrap_servers, lookup, "one", "two")
    config = with_two_threads(application_id, bootstrap_servers, tmp_path)
    with KafkaStreams(builder.build(), config) as made:
        made.start()
        eventually(lambda: made.state.name == "RUNNING", "it runs")
        eventually(lambda: has_counted(made), "it has counted")
        yield made


def test_all_kinds_of_stores_can_be_read(streams: KafkaStreams) -> None:
    names = streams.store("names")
    assert names.get("k1") == "two"
    assert sorted(names.all()) == [("k0", "one"), ("k1", "two")]
    assert names.approximate_num_entries() == 2, "each stream thread has all rows"
    assert streams.query("names", "get", "k0").keys() == {"global"}
    for store, method, arguments, error, message in (
        ("cuonts", "get", ("k1",), UnknownStateStoreError, "no state store 'cuonts'; it has: counts, names, windows"),
        ("counts", "fetch", ("k1", 0, 1), StateStoreTypeError, "which has no method fetch; it has all, .*get"),
        ("windows", "get", ("k1",), StateStoreTypeError, "which has no method get; it has .*fetch"),
        ("names", "fetch_all", (0, 1), StateStoreTypeError, "which has no method fetch_all"),
        ("counts", "put", ("k1", 5), StateStoreTypeError, "put does not read a store"),
        ("counts", "get", (), StateStoreTypeError, "get of counts: missing a required argument"),
        ("counts", "get", (7,), StreamsError, "Cannot query counts"),
    ):
        with pytest.raises(error, match=message) as raised:
            streams.query(store, method, *arguments)
        assert not isinstance(raised.value, InvalidStateStoreError), "a client that tries again would never end"


def test_one_partition_of_a_store(streams: KafkaStreams) -> None:
    parts = [streams.store("counts", partition=number, stale=True).all() for number in (0, 1)]
    assert sorted(parts[0] + parts[1]) == [("k0", 1), ("k1", 1)]
    (task,) = streams.query("counts", "all", partition=1)
    assert task.endswith("_1")
    for stale in (False, True):
        for partition in (2, -1):
            with pytest.raises(StreamsError, match="The store counts has 2 partitions, from 0 to 1") as raised:
                streams.query("counts", "all", partition=partition, stale=stale)
            assert not isinstance(raised.value, InvalidStateStoreError), "a client that tries again would never end"


@dataclass
class EndsLate:
    """Leaves values as they are. Its process ends only when a file exists, or when Penstock loses patience."""

    file: Path
    is_registered: bool = False

    def __call__(self, value: str) -> str:
        if not self.is_registered:
            self.is_registered = True
            atexit.register(self.wait)
        return value

    def wait(self) -> None:
        while not self.file.exists():
            time.sleep(0.05)


def test_a_store_is_whole_although_a_removed_process_ends_after_its_tasks_have_moved(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, end = make_topic("in", partitions=PARTITIONS), tmp_path / "end"
    builder = StreamsBuilder()
    records = builder.stream(source, key_serde=TEXT, value_serde=TEXT).map_values(EndsLate(end))
    records.group_by_key(key_serde=TEXT, value_serde=TEXT).count(store="counts")
    keys = [f"k{number}" for number in range(50)]
    produce(bootstrap_servers, source, *keys)
    config = with_two_threads(application_id, bootstrap_servers, tmp_path)

    def is_whole() -> bool:
        return len(read_now(made.store("counts").all) or ()) == len(keys)

    with KafkaStreams(builder.build(), config) as made:
        made.start()
        eventually(lambda: shared_by(made, 2), "both have tasks")
        eventually(is_whole, "all is counted")
        removing = threading.Thread(target=made.remove_stream_thread)
        removing.start()
        eventually(lambda: has_all(made), "the other one has all tasks")
        end.touch()
        removing.join()
        eventually(is_whole, "the store is whole again")


def has_all(streams: KafkaStreams) -> bool:
    """Return whether one stream thread has all tasks and runs."""
    return any(
        thread.state == "RUNNING" and len(tasks([thread])[thread.slot]) == PARTITIONS for thread in streams.status()
    )
