"""What a rehearsal of one task needs, in a directory: its start, its stores, its input, its configuration.

    start.json         the manifest of the checkpoint, or null; the first offsets; the partitions of topics
    stores/            the files of the checkpoint
    records.jsonl      the input, in the order of each partition
    globals.jsonl      the records of the topics of global tables
    settings.json      the configuration, without secrets

A process that has this directory needs no brokers. The test that a rehearsal writes keeps a copy of it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from penstock.statestore.checkpoints.manifest import decode
from penstock.topology.config.config_def import is_secret
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import Message, RawRecord, TaskId, TopicPartition

from .starts import Start

RECORDS, GLOBALS = "records.jsonl", "globals.jsonl"
_START, _SETTINGS = "start.json", "settings.json"
#: Records that are read from a file at a time.
BATCH = 1_000


@dataclass(frozen=True, slots=True)
class RehearsedSlice:
    """directory: of the slice. limit: the number of records to process."""

    directory: Path
    task: TaskId
    start: Start
    counts: Mapping[str, int]
    limit: int

    def write(self, config: StreamsConfig) -> None:
        """Write the description; stores and records are written by others."""
        manifest = self.start.manifest
        described = {
            "task": str(self.task),
            "manifest": None if manifest is None else json.loads(manifest.encode()),
            "offsets": [[*partition, offset] for partition, offset in self.start.offsets.items()],
            "counts": dict(self.counts),
            "limit": self.limit,
        }
        (self.directory / _START).write_text(json.dumps(described, indent=1))
        settings = {key: value for key, value in config.originals().items() if not is_secret(key)}
        (self.directory / _SETTINGS).write_text(json.dumps(settings, indent=1))

    @classmethod
    def read(cls, directory: Path) -> RehearsedSlice:
        """Read a description."""
        found = json.loads((directory / _START).read_text())
        manifest = None if found["manifest"] is None else decode(json.dumps(found["manifest"]).encode())
        offsets = {TopicPartition(topic, number): offset for topic, number, offset in found["offsets"]}
        return cls(directory, TaskId.parse(found["task"]), Start(offsets, manifest), found["counts"], found["limit"])

    def config(self) -> StreamsConfig:
        """Return the configuration."""
        return StreamsConfig(json.loads((self.directory / _SETTINGS).read_text()))

    def input(self, partition: TopicPartition) -> Generator[Sequence[Message], None, None]:
        """Yield the records of an input partition in batches."""
        mine = (record for record in read_records(self.directory / RECORDS) if place_of(record) == partition)
        yield from _batches(mine)

    def of_topic(self, topic: str) -> Iterator[Sequence[Message]]:
        """Yield the records of a topic of a global table in batches."""
        yield from _batches(record for record in read_records(self.directory / GLOBALS) if record.topic() == topic)


def place_of(record: Message) -> TopicPartition:
    """Return the partition of a record."""
    return TopicPartition(record.topic(), record.partition())


def _batches(records: Iterable[Message]) -> Generator[Sequence[Message], None, None]:
    batch: list[Message] = []
    for record in records:
        batch.append(record)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def write_records(path: Path, records: Iterable[Message]) -> int:
    """Write records to a file; returns how many."""
    count = 0
    with path.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(_plain(record)) + b"\n")
            count += 1
    return count


def read_records(path: Path) -> Iterator[RawRecord]:
    """Yield the records of a file of write_records."""
    with path.open("rb") as file:
        for line in file:
            topic, partition, offset, timestamp, key, value, headers = orjson.loads(line)
            pairs = None if headers is None else [(name, from_hex(data)) for name, data in headers]
            yield RawRecord(topic, partition, offset, timestamp, from_hex(key), from_hex(value), pairs)


def _plain(record: Message) -> list[object]:
    headers = record.headers()
    pairs = None if headers is None else [[name, as_hex(data)] for name, data in headers]
    place = [record.topic(), record.partition(), record.offset(), record.timestamp()[1]]
    return [*place, as_hex(record.key()), as_hex(record.value()), pairs]


def as_hex(data: bytes | None) -> str | None:
    """Return bytes as hexadecimal digits."""
    return None if data is None else data.hex()


def from_hex(text: str | None) -> bytes | None:
    """Return the bytes of as_hex."""
    return None if text is None else bytes.fromhex(text)
