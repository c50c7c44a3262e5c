"""A task whose input is in memory, replayed from checkpoints that earlier replays have taken."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from penstock import JoinWindows, Serdes, StreamsBuilder, TimeWindows, Topology
from penstock.replay.global_tables import open_global_tables
from penstock.replay.replayed_task import replayed_tasks
from penstock.replay.replica import Replica
from penstock.replay.starts import Start
from penstock.statestore.checkpoints.manifest import InputPosition, Manifest, StoredStore
from penstock.supervisor.source.topology_gate import plain_facts
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import Message, RawRecord, TaskId, TopicPartition

CONFIG = StreamsConfig({"application.id": "app", "bootstrap.servers": "nowhere:1"})
TASK = TaskId(0, 0)
TEXT = Serdes.string()
#: Replays read their input in batches of this many records.
BATCH = 7


def counting() -> Topology:
    """Counts by key, all and by window."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=TEXT, value_serde=TEXT)
    stream.group_by_key().count(store="counts").to_stream().to("out", key_serde=TEXT, value_serde=Serdes.int64())
    windows = TimeWindows.of_size_and_grace(10_000, 5_000)
    stream.group_by_key().windowed_by(windows).count(store="windows")
    return builder.build()


def joining() -> Topology:
    """Joins two streams by window, and one of them with a table."""
    builder = StreamsBuilder()
    left = builder.stream("in", key_serde=TEXT, value_serde=TEXT)
    right = builder.stream("other", key_serde=TEXT, value_serde=TEXT)
    names = builder.table("names", key_serde=TEXT, value_serde=TEXT, store="names")
    joined = left.left_join(right, lambda one, two: f"{one}+{two}", JoinWindows.of_time_difference_with_no_grace(3_000))
    joined.join(names, lambda value, name: f"{name}: {value}").to("out", key_serde=TEXT, value_serde=TEXT)
    left.group_by_key().reduce(lambda one, two: two if two > one else one, store="highest")
    return builder.build()


class Input:
    """Records of topics with one partition, in the order in which they were made."""

    def __init__(self, *topics: str) -> None:
        self.records: dict[str, list[RawRecord]] = {topic: [] for topic in topics}

    def add(self, topic: str, key: str, value: str | None, timestamp: int) -> None:
        """Append a record."""
        log = self.records[topic]
        log.append(RawRecord(topic, 0, len(log), timestamp, key.encode(), None if value is None else value.encode()))

    def fill(self, count: int, seed: int = 1) -> Input:
        """Append random records, some of them out of order."""
        rng = random.Random(seed)
        for number in range(count):
            topic = rng.choice(list(self.records))
            self.add(topic, f"k{rng.randrange(8)}", f"v{rng.randrange(100)}", number * 500 + rng.randrange(4_000))
        return self

    def from_offset(self, topic: str, offset: int) -> Generator[Sequence[Message], None, None]:
        """Yield the records from an offset on in batches."""
        log = self.records[topic]
        for at in range(offset, len(log), BATCH):
            yield log[at : at + BATCH]


class Replays:
    """The replays of one task."""

    def __init__(self, topology: Topology, records: Input, folder: Path, config: StreamsConfig = CONFIG) -> None:
        self.topology, self.config, self.input = topology, config, records
        tasks = replayed_tasks(topology, config, dict.fromkeys([*records.records, "out"], 1))
        self.task = next(iter(tasks.values()))
        self.beginning = Start(dict.fromkeys(self.task.inputs, 0))
        self._folder = folder
        self._runs = 0

    def directory(self) -> Path:
        """Return the directory of the next replay, which does not exist yet."""
        self._runs += 1
        return self._folder / f"run-{self._runs}"

    def replica(self, start: Start | None = None, directory: Path | None = None, processes: bool = True) -> Replica:
        """Return a replay from a start, by default from the beginning."""
        start = start or self.beginning
        inputs = {each: self.input.from_offset(each.topic, start.offsets[each]) for each in self.task.inputs}
        made = directory or self.directory()

        def open_global(clock: Clock) -> DriverTask | None:
            return open_global_tables(self.topology, self.config, clock, made / "global", self._tables)

        return Replica(self.task, self.config, start, made, inputs, open_global, {"out": 1}, processes)

    def _tables(self, topic: str) -> Generator[Sequence[Message], None, None]:
        yield from self.input.from_offset(topic, 0)

    def checkpoint(self, replica: Replica, processed: dict[TopicPartition, int]) -> tuple[Start, Path]:
        """Take a checkpoint, as the application does at a commit. processed: the next offset of each input."""
        directory = self.directory()
        stores = {}
        for name, store in replica.task.stores.items():
            store.rows.checkpoint(directory / "stores" / name)
            stores[name] = StoredStore(f"app-{name}-changelog", "0a" * 16, 0, store.committed_offset())
        task = replica.task
        alone = len(self.task.inputs) == 1
        times = {each: task.stream_time_ms if alone else replica.partition_time(each) for each in self.task.inputs}
        facts = plain_facts(self.topology, self.config)
        mine = {"version": facts["version"], "subtopologies": {}, "stores": facts["stores"], "internal_topics": {}}
        inputs = tuple(InputPosition(*each[:1], None, 0, processed[each], times[each]) for each in self.task.inputs)
        metadata = dict(task.processor_metadata)
        manifest = Manifest("app", str(TASK), 1, task.wall_clock_ms(), "1.0", "", mine, stores, inputs, metadata)
        return Start(dict(processed), manifest), directory


def rows(replica: Any) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return the bytes of all rows of a task, by store."""
    return {name: list(store.rows.scan(None, None)) for name, store in replica.stores.items()}


#: Each topology with the topics that it reads.
TOPOLOGIES: dict[str, tuple[Callable[[], Topology], tuple[str, ...]]] = {
    "counting": (counting, ("in",)),
    "joining": (joining, ("in", "other", "names")),
}
