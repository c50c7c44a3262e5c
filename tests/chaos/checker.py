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

from tests.chaos.checkers.excuse import Excuse, Number
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
    """The numbers of one key in a topic, which should be 1, 2, 3 …."""

    highest: int = 0
    missing: set[int] = field(default_factory=set)
    doubled: list[int] = field(default_factory=list)
    late: int = 0

    def see(self, number: int) -> None:
        """Count the next number."""
        if number > self.highest:
            self.missing.update(range(self.highest + 1, number))
            self.highest = number
        elif number in self.missing:
            self.missing.remove(number)
            self.late += 1
        else:
            self.doubled.append(number)

    def lost(self, expected: int) -> set[int]:
        """Return the numbers of 1…expected that have not been seen."""
        return self.missing.union(range(self.highest + 1, expected + 1))


@dataclass(frozen=True)
class Verdict:
    """The violations. alien: outputs of records that were never committed; state: differences from a replay.

    excused: violations that are not counted, with the reason.
    """

    guarantee: str
    lost: int
    doubled: int
    out_of_order: int
    alien: int
    state: tuple[str, ...]
    ahead: int
    excused: str = field(default="", kw_only=True)

    @property
    def good(self) -> bool:
        """True if the guarantee was kept."""
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
        excused = f"; {self.excused}" if self.excused else ""
        return f"{self.lost} lost, {self.doubled} doubled, {self.out_of_order} out of order{alien}, {state}{excused}"


class Ledger:
    """The records seen so far. Does not use a broker.

    groups: their number; key kN belongs to group gM with M = N modulo groups. excuse: violations that are not judged,
    because a broker dropped markers.
    """

    def __init__(self, guarantee: str, groups: int) -> None:
        self.guarantee = guarantee
        self.excuse = Excuse()
        self.expected: dict[str, int] = {}
        self.copies: dict[str, Sequence] = {}
        self.aliens: list[Number] = []
        self.tallies: dict[str, Any] = {}
        self.group_tallies: dict[str, Any] = {}
        #: Keys of updates that repeat or precede the previous one.
        self.repeated_tallies: list[str] = []
        self.repeated_group_tallies: list[str] = []
        self._groups = groups
        self._gaps: set[Number] = set()

    def see_input(self, key: str, value: Any) -> None:
        """Count a committed record of the input; a key's numbers must be 1, 2, 3 …, see ``check_input``."""
        number, expected = value["n"], self.expected.get(key, 0) + 1
        if value.get("aborted") or number < expected:
            self._gaps.add((key, number))
        else:
            self._gaps |= {(key, missing) for missing in range(expected, number)}
            self.expected[key] = number

    def check_input(self) -> None:
        """Raise ValueError if the input itself is wrong."""
        if wrong := sorted(self._gaps - self.excuse.numbers):
            raise ValueError(f"the input lacks or repeats {wrong[:SHOWN]}, or they are aborted: the feeder is wrong")

    def see_copy(self, key: str, value: Any) -> None:
        """Count an output that is a copy of an input."""
        if value.get("aborted"):
            self.aliens.append((key, value["n"]))
        else:
            self.copies.setdefault(key, Sequence()).see(value["n"])

    def see_tally(self, key: str, value: Any) -> None:
        """Count an update of a key's tally."""
        self._see_update(self.tallies, self.repeated_tallies, key, value)

    def see_group_tally(self, group: str, value: Any) -> None:
        """Count an update of a group's tally."""
        self._see_update(self.group_tallies, self.repeated_group_tallies, group, value)

    def _see_update(self, table: dict[str, Any], repeated: list[str], key: str, value: Any) -> None:
        if key in table and value["records"] <= table[key]["records"]:
            repeated.append(key)
        table[key] = value

    def sent(self) -> int:
        """Return the number of input records, including excused ones that are missing from it."""
        unseen = sum(number > self.expected.get(key, 0) for key, number in self.excuse.numbers)
        return sum(self.expected.values()) + unseen

    def copied(self) -> int:
        """Return the number of distinct output records."""
        return self.sent() - self.lost()

    def lost(self) -> int:
        """Return the number of records without an output."""
        return sum(
            (key, number) not in self.excuse.numbers
            for key, count in self.expected.items()
            for number in self.copies.get(key, Sequence()).lost(count)
        )

    def doubled(self) -> int:
        """Return the number of duplicate outputs; with exactly-once also of duplicate updates of tallies."""
        excuse = self.excuse
        copies = sum((key, n) not in excuse.numbers for key, s in self.copies.items() for n in s.doubled)
        if self.guarantee != EXACTLY_ONCE:
            return copies
        tallies = sum(key not in excuse.keys for key in self.repeated_tallies)
        return copies + tallies + sum(group not in excuse.groups for group in self.repeated_group_tallies)

    def _alien(self) -> int:
        """Return the number of outputs of records that were never committed."""
        made_up = {(k, n) for k, s in self.copies.items() for n in range(self.expected.get(k, 0) + 1, s.highest + 1)}
        aborted = sum(number not in self.excuse.numbers for number in self.aliens)
        return aborted + len(made_up - self.excuse.numbers)

    def complete(self) -> bool:
        """Return True if all outputs have arrived, and the last tallies include all records."""
        return not (
            self.lost()
            or self._behind(self.tallies, self.replayed_tallies()).difference(self.excuse.keys)
            or self._behind(self.group_tallies, self.replayed_group_tallies()).difference(self.excuse.groups)
        )

    def _behind(self, table: dict[str, Any], replayed: dict[str, Any]) -> set[str]:
        return {
            key
            for key, value in replayed.items()
            if key not in table or table[key]["records"] < value["records"] or table[key]["last"] != value["last"]
        }

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
        """Return the verdict. The changelogs: key and last value. Raises ValueError if the input itself is wrong."""
        self.check_input()
        excuse = self.excuse
        tallies, groups = self.replayed_tallies(), self.replayed_group_tallies()
        compared = (
            ("tallies", self.tallies, tallies, excuse.keys),
            ("changelog of the tallies", tally_changelog, tallies, excuse.keys),
            ("group tallies", self.group_tallies, groups, excuse.groups),
            ("changelog of the group tallies", group_changelog, groups, excuse.groups),
        )
        differences = [difference for tables in compared for difference in self._differences(*tables)]
        ahead = sum(table.get(key) != value for _, table, replayed, _ in compared for key, value in replayed.items())
        exact = self.guarantee == EXACTLY_ONCE
        return Verdict(
            self.guarantee,
            self.lost(),
            self.doubled(),
            sum(sequence.late for sequence in self.copies.values()),
            self._alien(),
            tuple(differences),
            0 if exact else ahead,
            excused=str(excuse) if excuse else "",
        )

    def _differences(
        self, name: str, table: dict[str, Any], replayed: dict[str, Any], excused: Mapping[str, int]
    ) -> list[str]:
        """Compare tallies.

        At-least-once may count duplicates, but must count every record, and the last record must be the last one
        counted.
        """
        wrong = {key for key in table if key not in replayed}
        if self.guarantee == EXACTLY_ONCE:
            wrong |= {key for key, value in replayed.items() if table.get(key) != value}
        else:
            wrong |= self._behind(table, replayed)
        wrong.difference_update(excused)
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
    """Follows topics during a run."""

    @property
    def seen(self) -> Mapping[tuple[str, int], int]:
        """The number of records by partition."""

    @property
    def offsets(self) -> Mapping[tuple[str, int], Iterable[int]]:
        """The offsets of the returned records."""

    def poll(self, seconds: float) -> list[Sight]:
        """Return the records that arrived since the last call; waits at most this many seconds."""

    def read_to_end(self) -> list[Sight]:
        """Return everything up to the end of all partitions; raises TimeoutError."""

    def renew(self) -> None:
        """Replace the client by a new one."""

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
        #: Number of returned records by partition.
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
                "fetch.wait.max.ms": 50,  # the broker holds the response that reports the end for so long
                "auto.offset.reset": "error",
                "log_level": 2,  # brokers go down often here
            }
        )

    def _numbers(self, topic: str) -> Iterable[int]:
        """Return the numbers of a topic's partitions; on a busy machine a broker learns of a new topic with a delay."""
        deadline = time.monotonic() + METADATA_SECONDS
        while True:
            known = self._consumer.list_topics(topic, METADATA_SECONDS).topics[topic]
            if known.partitions:
                return list(known.partitions)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} has no partitions: {known.error}")
            self._consumer.poll(0.1)  # nothing is assigned yet, so this waits

    def _assign(self) -> None:
        """Continue after the last record of each partition."""
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


def read_all(
    bootstrap_servers: str, topics: Iterable[str], start: Mapping[tuple[str, int], int] | None = None
) -> list[Sight]:
    """Return the committed records of topics up to their ends, in order within each partition.

    start: the first offsets, by default the beginning.
    """
    reader = TopicReader(bootstrap_servers, topics, start)
    try:
        return reader.read_to_end()
    finally:
        reader.close()


def read_table(bootstrap_servers: str, topic: str) -> dict[str, Any]:
    """Return the last value of each key of a topic, without deleted keys."""
    table = {record.key: record for record in read_all(bootstrap_servers, [topic])}
    return {record.name: record.content for record in table.values() if record.value is not None}
