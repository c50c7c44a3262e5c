"""Judges a schedule from outside: by the records of the input topics, and by the contents of brokers and stores.

It does not depend on how stream threads work. Some invariants are checked continuously, the others at the end, when all
input has been processed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from penstock.testing.broker.group_coordinator import CommittedOffset
from penstock.topology.records import TopicPartition
from tests.simulation.applications import (
    COUNTS,
    IN,
    OUT,
    TABLE,
    Application,
    InputRecord,
    changelog_key,
    decode_count,
    numbers,
)
from tests.simulation.broker import Broker
from tests.simulation.world import World

History = dict[str, list[str]]


class Auditor:
    """Checks the invariants. exactly_once: the application's guarantee."""

    def __init__(self, world: World, application: Application, exactly_once: bool) -> None:
        self.world = world
        self.application = application
        self.exactly_once = exactly_once
        self.inputs: dict[str, InputRecord] = {}
        self.offsets: dict[str, tuple[TopicPartition, int]] = {}
        self.processed: Counter[str] = Counter()
        self._committer: dict[TopicPartition, tuple[int, str]] = {}
        self._broker: Broker | None = None

    def watch(self, broker: Broker) -> None:
        """Watch these brokers."""
        self._broker = broker

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    @property
    def strict(self) -> bool:
        """Whether duplicates are violations: with exactly-once, or if nothing has gone wrong."""
        return self.exactly_once or not self.world.disturbed

    def on_input(self, record: InputRecord, offset: int) -> None:
        """Note a record that was written to an input topic."""
        self.inputs[record.number] = record
        self.offsets[record.number] = (TopicPartition(record.topic, record.partition), offset)

    # Watched all the time

    def seen(self, number: str, client: str, again: bool) -> None:
        """Check a record that a processor sees: only a process removed from the group may see a committed one again."""
        self.processed[number] += again or not self.application.repartitioned
        if again:
            return
        partition, offset = self.offsets[number]
        committed = self.broker.committed.get(partition)
        if committed is not None and offset < committed.offset and self.broker.group.is_current(client):
            self.world.violated(f"record {number} ({partition} offset {offset}) is processed again after its commit")

    def on_commit(
        self, client: str, offsets: Mapping[TopicPartition, int], committed: Mapping[Any, CommittedOffset]
    ) -> None:
        """Check a commit: one process per partition and generation commits, and offsets never decrease.

        committed: what was committed before.
        """
        generation = self.broker.group.generation
        for partition, offset in offsets.items():
            before = self._committer.get(partition)
            if before is not None and before[0] == generation and slot(before[1]) != slot(client):
                self.world.violated(f"{partition} is committed by {before[1]} and by {client} in one generation")
            self._committer[partition] = (generation, client)
            last = committed.get(partition)
            if last is not None and offset < last.offset:
                self.world.violated(f"{partition} is committed at {offset}, behind {last.offset}")

    # In the end

    def check_end(self, stores: Mapping[str, Mapping[str, list[str]]]) -> None:
        """Check outputs, stores and changelogs. stores: the rows of all tasks, by store."""
        expected = self.application.expected(list(self.inputs.values()))
        if self.application.each:
            self._check_each(expected)
            if not self.application.global_table:
                self._check_table(stores["versions"], "the table")
            return
        self._check_outputs(expected)
        if self.application.counts:
            self._check_counts(expected)
        if self.application.store is not None and not self._unsure:
            self._check_history(expected, stores[self.application.store], "store")
            changelog = f"app-{self.application.store}-changelog"
            rows = {changelog_key(self.application, r): numbers(r.value()) for r in self.broker.visible(changelog)}
            self._check_history(expected, rows, "changelog")

    @property
    def _unsure(self) -> bool:
        """Whether a process that the group had removed wrote to changelogs, which at-least-once cannot prevent."""
        return not self.exactly_once and self.broker.stale_writes > 0

    @property
    def _lost_in_flight(self) -> bool:
        """Return True if requests in flight when their process was stopped may have lost outputs.

        This is possible if results wait in the state for a tick, and older values arrived after newer ones.
        """
        return self._unsure and self.application.ticks and not self.broker.late_records

    def _check_outputs(self, expected: History) -> None:
        outputs: dict[str, list[list[str]]] = {}
        for record in self.broker.visible(OUT):
            outputs.setdefault((record.key() or b"").decode(), []).append(numbers(record.value()))
        for key, wanted in expected.items():
            updates = outputs.get(key, [])
            written = {number for update in updates for number in update}
            if not self._lost_in_flight:
                self._check_lost(f"output of {key}", wanted, written)
            if not self.strict:
                continue
            if self.application.finals and len(updates) > 1:
                self.world.violated(f"{key} has {len(updates)} final results")
            for before, after in pairwise(updates):
                if after[: len(before)] != before or len(after) == len(before):
                    self.world.violated(f"output of {key}: {after} follows {before}")
            if updates:
                self._check_same(f"last output of {key}", wanted, updates[-1])

    def _check_counts(self, expected: History) -> None:
        """Check that counts only grow and end at the number of records; with at-least-once they may end higher."""
        counts: dict[str, list[int]] = {}
        for record in self.broker.visible(COUNTS):
            counts.setdefault((record.key() or b"").decode(), []).append(decode_count(record.value()))
        for key, wanted in expected.items():
            found = counts.get(key, [0])
            if self.strict and (found != sorted(set(found)) or found[-1] != len(wanted)):
                self.world.violated(f"the counts of {key} are {found}, it has {len(wanted)} records")
            if not self._unsure and max(found) < len(wanted):
                self.world.violated(f"LOST: the counts of {key} reach {max(found)}, it has {len(wanted)} records")

    def _check_history(self, expected: History, rows: Mapping[str, list[str]], where: str) -> None:
        for key, wanted in expected.items():
            found = rows.get(key, [])
            self._check_lost(f"{where} of {key}", wanted, found)
            if self.strict:
                self._check_same(f"{where} of {key}", wanted, found)
                continue
            for number, times in Counter(found).items():
                if times > self.processed[number]:
                    self.world.violated(
                        f"{where} of {key}: {number} is there {times} times, processed {self.processed[number]} times"
                    )

    def _check_each(self, expected: History) -> None:
        outputs: dict[str, list[tuple[str, str]]] = {}
        for record in self.broker.visible(OUT):
            number, _, version = (record.value() or b"").decode().partition(":")
            outputs.setdefault((record.key() or b"").decode(), []).append((number, version))
        for key, wanted in expected.items():
            found = outputs.get(key, [])
            self._check_lost(f"output of {key}", wanted, [number for number, _ in found])
            if not self.strict:
                continue
            self._check_same(f"output of {key}", wanted, [number for number, _ in found])
            versions = [-1 if version == "None" else int(version) for _, version in found]
            if versions != sorted(versions) and not self.application.global_table:  # each process reads it by itself
                self.world.violated(f"output of {key}: the table goes back in time: {versions}")

    def check_global_table(self, client: str, rows: Mapping[str, list[str]]) -> None:
        """Look at a process's copy of the global table."""
        self._check_table(rows, f"the global table of {client}")

    def _check_table(self, rows: Mapping[str, list[str]], where: str) -> None:
        if self._unsure:
            return
        newest = {record.key: [record.number] for record in self.inputs.values() if record.topic == TABLE}
        for key, version in newest.items():
            found = rows.get(key)
            if found != version:
                self.world.violated(f"{where}: the row of {key} is {found}, its last version was {version}")

    def _check_lost(self, where: str, wanted: Iterable[str], found: Iterable[str]) -> None:
        lost = sorted(set(wanted) - set(found), key=int)
        if lost:
            self.world.violated(f"LOST: {where} lacks {' '.join(lost)}")

    def _check_same(self, where: str, wanted: list[str], found: list[str]) -> None:
        if self.application.repartitioned:  # of each input partition in order; in any order between them
            wanted, found = self._by_partition(wanted), self._by_partition(found)
        if found != wanted:
            doubled = [number for number, times in Counter(found).items() if times > 1]
            what = f"DOUBLED {' '.join(doubled)}" if doubled else "OUT OF ORDER or changed"
            self.world.violated(f"{where} is {' '.join(found)}, not {' '.join(wanted)}: {what}")

    def _by_partition(self, found: list[str]) -> list[str]:
        return sorted(found, key=lambda number: self.offsets[number][0] if number in self.offsets else (IN, -1))


def slot(client: str) -> str:
    """Return the slot of a process, whose next process may replace it in the group without a rebalance."""
    return client.partition("#")[0]


def rows_of(store: Any) -> dict[str, list[str]]:
    """Return the rows of a store whose values are record numbers."""
    found = {}
    for key, row in store.all():
        name = key if isinstance(key, str) else f"{key.key}@{key.start}"
        value = row.value if hasattr(row, "value") else row
        found[name] = str(value).split()
    return found
