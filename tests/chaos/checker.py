"""Finds lost, duplicated and reordered records, and state that differs from that of a replay.

It reads topics with its own consumer (read_committed) and derives the expected results from the input topic alone. It
shares no code with Penstock or with the topology.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.cluster import UNREACHABLE

EXACTLY_ONCE = "exactly_once_v2"
AT_LEAST_ONCE = "at_least_once"
METADATA_SECONDS = 30.0
#: Maximum number of differing values in a verdict's text.
SHOWN = 5
#: Timeout for the next record when reading a topic to its end, after all writes.
READ_SECONDS = 60.0


@dataclass
class Sequence:
    """The numbers of one key in an output topic, which should be 1, 2, 3 …."""

    highest: int = 0
    missing: set[int] = field(default_factory=set)
    doubled: int = 0
    late: int = 0

    def see(self, number: int) -> None:
        """Take in the next one."""
        if number > self.highest:
            self.missing.update(range(self.highest + 1, number))
            self.highest = number
        elif number in self.missing:
            self.missing.remove(number)
            self.late += 1
        else:
            self.doubled += 1

    def lost(self, expected: int) -> int:
        """Return how many of 1…expected have not been seen."""
        return len(self.missing) + max(expected - self.highest, 0)


@dataclass(frozen=True)
class Verdict:
    """The violations. alien: outputs of records that were never committed; state: differences from a replay."""

    guarantee: str
    lost: int
    doubled: int
    out_of_order: int
    alien: int
    state: tuple[str, ...]
    ahead: int

    @property
    def good(self) -> bool:
        """Whether the guarantee was kept."""
        doubles_allowed = self.guarantee != EXACTLY_ONCE
        return not (self.lost or self.out_of_order or self.alien or self.state) and (
            doubles_allowed or not self.doubled
        )

    def __str__(self) -> str:
        if self.state:
            state = f"state differs from a replay in {len(self.state)} values"
        elif self.ahead:
            state = f"state complete ({self.ahead} values count doubled records too)"
        else:
            state = "state equal"
        alien = f", {self.alien} of aborted transactions" if self.alien else ""
        return f"{self.lost} lost, {self.doubled} doubled, {self.out_of_order} out of order{alien}, {state}"


class Ledger:
    """The records seen so far. Does not use a broker.

    groups: how many; key kN belongs to group gM with M = N modulo groups.
    """

    def __init__(self, guarantee: str, groups: int) -> None:
        self.guarantee = guarantee
        self.expected: dict[str, int] = {}
        self.copies: dict[str, Sequence] = {}
        self.aliens = 0
        self.tallies: dict[str, Any] = {}
        self.group_tallies: dict[str, Any] = {}
        self.repeated_tallies = 0
        self._groups = groups

    def see_input(self, key: str, value: Any) -> None:
        """Take in a committed record of the input; raises ValueError if the input itself is not 1, 2, 3 …."""
        number = self.expected.get(key, 0) + 1
        if value["n"] != number or value.get("aborted"):
            raise ValueError(f"the input has {value} of {key} where number {number} should be: the feeder is wrong")
        self.expected[key] = number

    def see_copy(self, key: str, value: Any) -> None:
        """Take in an output that is a copy of an input."""
        if value.get("aborted"):
            self.aliens += 1
        else:
            self.copies.setdefault(key, Sequence()).see(value["n"])

    def see_tally(self, key: str, value: Any) -> None:
        """Take in an update of a key's tally."""
        self._see_update(self.tallies, key, value)

    def see_group_tally(self, group: str, value: Any) -> None:
        """Take in an update of a group's tally."""
        self._see_update(self.group_tallies, group, value)

    def _see_update(self, table: dict[str, Any], key: str, value: Any) -> None:
        if key in table and value["records"] <= table[key]["records"]:
            self.repeated_tallies += 1
        table[key] = value

    def sent(self) -> int:
        """Return how many records the input has."""
        return sum(self.expected.values())

    def copied(self) -> int:
        """Return how many different records have come out."""
        return self.sent() - self.lost()

    def lost(self) -> int:
        """Return how many records have not come out."""
        return sum(self.copies.get(key, Sequence()).lost(count) for key, count in self.expected.items())

    def complete(self) -> bool:
        """Return whether everything has come out, and the last tallies are those of all records."""
        return not (
            self.lost()
            or self._behind(self.tallies, self.replayed_tallies())
            or self._behind(self.group_tallies, self.replayed_group_tallies())
        )

    def _behind(self, table: dict[str, Any], replayed: dict[str, Any]) -> list[str]:
        return [
            key
            for key, value in replayed.items()
            if key not in table or table[key]["records"] < value["records"] or table[key]["last"] != value["last"]
        ]

    def replayed_tallies(self) -> dict[str, Any]:
        """Return the expected tallies of the keys."""
        return {
            key: {"records": count, "sum": _sum_to(count), "last": count, "breaks": 0}
            for key, count in self.expected.items()
        }

    def replayed_group_tallies(self) -> dict[str, Any]:
        """Return the expected tallies of the groups."""
        tallies: dict[str, Any] = {}
        for key, count in self.expected.items():
            group = f"g{int(key[1:]) % self._groups}"
            tally = tallies.setdefault(group, {"records": 0, "sum": 0, "last": {}, "breaks": 0})
            tally["records"] += count
            tally["sum"] += _sum_to(count)
            tally["last"][key] = count
        return tallies

    def verdict(self, tally_changelog: dict[str, Any], group_changelog: dict[str, Any]) -> Verdict:
        """Judge. The changelogs: key and last value."""
        tallies, groups = self.replayed_tallies(), self.replayed_group_tallies()
        compared = (
            ("tallies", self.tallies, tallies),
            ("changelog of the tallies", tally_changelog, tallies),
            ("group tallies", self.group_tallies, groups),
            ("changelog of the group tallies", group_changelog, groups),
        )
        differences = [d for name, table, replayed in compared for d in self._differences(name, table, replayed)]
        ahead = sum(table.get(key) != value for _, table, replayed in compared for key, value in replayed.items())
        doubled = sum(sequence.doubled for sequence in self.copies.values())
        exact = self.guarantee == EXACTLY_ONCE
        return Verdict(
            self.guarantee,
            self.lost(),
            doubled + (self.repeated_tallies if exact else 0),
            sum(sequence.late for sequence in self.copies.values()),
            self.aliens + sum(max(s.highest - self.expected.get(k, 0), 0) for k, s in self.copies.items()),
            tuple(differences),
            0 if exact else ahead,
        )

    def _differences(self, name: str, table: dict[str, Any], replayed: dict[str, Any]) -> list[str]:
        """Compare tallies: at-least-once may count duplicates, but must count everything, and the last record last."""
        wrong = {key for key in table if key not in replayed}
        if self.guarantee == EXACTLY_ONCE:
            wrong |= {key for key, value in replayed.items() if table.get(key) != value}
        else:
            wrong |= set(self._behind(table, replayed))
        return [f"{name}, {key}: {table.get(key)} instead of {replayed.get(key)}" for key in sorted(wrong)]


def _sum_to(count: int) -> int:
    return count * (count + 1) // 2


@dataclass(frozen=True, slots=True)
class Sight:
    """A committed record, as read."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def name(self) -> str:
        """The key as text."""
        return self.key.decode()

    @property
    def content(self) -> Any:
        """The value's JSON."""
        return json.loads(self.value or b"null")


class Reader(Protocol):
    """Follows topics while a run lasts."""

    @property
    def seen(self) -> Mapping[tuple[str, int], int]:
        """How many records each partition has."""

    @property
    def offsets(self) -> Mapping[tuple[str, int], Iterable[int]]:
        """The offsets of the records that were given."""

    def poll(self, seconds: float) -> list[Sight]:
        """Return what has arrived since the last call, after at most so many seconds."""

    def read_to_end(self) -> list[Sight]:
        """Return everything up to the end of all partitions; raises TimeoutError."""

    def renew(self) -> None:
        """Continue with a new client."""

    def close(self) -> None:
        """Close the connections."""


class TopicReader:
    """Follows the committed records of topics from their beginning, or from the offsets in ``start``."""

    def __init__(
        self, bootstrap_servers: str, topics: Iterable[str], start: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._consumer = self._new_consumer()
        self._partitions = {(topic, number) for topic in topics for number in self._numbers(topic)}
        self._start = start or {}
        #: How many records each partition has given.
        self.seen = dict.fromkeys(self._partitions, 0)
        #: Their offsets.
        self.offsets = {partition: array("q") for partition in self._partitions}
        self._at_end: set[tuple[str, int]] = set()
        self._assign()

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "chaos-checker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,  # for so long the broker keeps the answer that says: the end
                "auto.offset.reset": "error",
                "log_level": 2,  # brokers go away here all the time
            }
        )

    def _numbers(self, topic: str) -> Iterable[int]:
        """Return the numbers of a topic's partitions; on a busy machine a broker learns late that it was created."""
        deadline = time.monotonic() + METADATA_SECONDS
        while True:
            known = self._consumer.list_topics(topic, METADATA_SECONDS).topics[topic]
            if known.partitions:
                return list(known.partitions)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} has no partitions: {known.error}")
            self._consumer.poll(0.1)  # nothing is assigned yet, so this waits

    def _assign(self) -> None:
        """Read from behind the last record of each partition."""
        next_offsets = {p: offsets[-1] + 1 for p, offsets in self.offsets.items() if offsets}
        start = {**dict.fromkeys(self._partitions, OFFSET_BEGINNING), **self._start, **next_offsets}
        self._consumer.assign([TopicPartition(*p, start[p]) for p in self._partitions])

    def renew(self) -> None:
        """Continue with a new consumer: librdkafka may not read a partition after its leader was away (issue 5430)."""
        self._consumer.close()
        self._consumer = self._new_consumer()
        self._at_end.clear()
        self._assign()

    def poll(self, seconds: float) -> list[Sight]:
        """Return the records since the last call; waits for some up to this number of seconds."""
        found = []
        for message in self._consumer.consume(2_000, seconds):
            error = message.error()
            partition = (str(message.topic()), int(message.partition() or 0))
            if error is None:
                self.seen[partition] += 1
                self.offsets[partition].append(message.offset() or 0)
                self._at_end.discard(partition)
                headers = cast("tuple[tuple[str, bytes | None], ...]", tuple(message.headers() or ()))
                key, value = message.key() or b"", message.value()
                found.append(Sight(*partition, key, value, message.timestamp()[1], headers))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(partition)
            elif not error.retriable() and error.code() not in UNREACHABLE:
                raise KafkaException(error)
        return found

    def read_to_end(self) -> list[Sight]:
        """Return everything up to the end of all partitions; raises TimeoutError."""
        found: list[Sight] = []
        deadline = time.monotonic() + READ_SECONDS
        while self._at_end != self._partitions:
            if more := self.poll(0.2):
                found += more
                deadline = time.monotonic() + READ_SECONDS
            elif time.monotonic() > deadline:
                missing = sorted(self._partitions - self._at_end)
                raise TimeoutError(f"no end of {missing}, and no record for {READ_SECONDS:.0f} s")
        return found

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()


def read_all(bootstrap_servers: str, topics: Iterable[str]) -> list[Sight]:
    """Return the committed records of topics up to their ends, those of a partition in order."""
    reader = TopicReader(bootstrap_servers, topics)
    try:
        return reader.read_to_end()
    finally:
        reader.close()


def read_table(bootstrap_servers: str, topic: str) -> dict[str, Any]:
    """Return the last value of each key of a topic; keys that were deleted are not in it."""
    table = {record.key: record for record in read_all(bootstrap_servers, [topic])}
    return {record.name: record.content for record in table.values() if record.value is not None}
