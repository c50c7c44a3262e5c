"""Numbered records of some keys: copies, tallies of keys, tallies of groups behind a repartition.

The outcome follows from the input, whatever is killed: a key's records stay in one partition and in order, and the
tally of a group sums up by key, so that the interleaving of partitions does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from typing_extensions import override

from tests.chaos import program
from tests.chaos.checker import Ledger, Reader, Sight, Verdict, read_table
from tests.chaos.checkers import Report
from tests.chaos.checkers.atomicity import Places, audit
from tests.chaos.checkers.dropped_markers import DroppedMarkers
from tests.chaos.checkers.excuse import Excuse
from tests.chaos.checkers.queries import Client, Queries
from tests.chaos.checkers.stuck import Stuck
from tests.chaos.feeder import NumberFeeder, Numbering
from tests.chaos.workloads.workload import Setting, Workload
from tests.free_port import free_port

PLACES = Places(
    group=program.APPLICATION_ID,
    numbers=program.NUMBERS,
    copies=program.COPIES,
    tallies=program.TALLIES,
    tally_changelog=f"{program.APPLICATION_ID}-{program.TALLY_STORE}-changelog",
    repartition=f"{program.APPLICATION_ID}-groups-repartition",
    group_tallies=program.GROUP_TALLIES,
    group_changelog=f"{program.APPLICATION_ID}-{program.GROUP_STORE}-changelog",
    groups=program.GROUPS,
)


class Numbers(Workload):
    """Small records, evenly distributed over keys."""

    name: ClassVar[str] = "numbers"
    topology: ClassVar[str] = "tests.chaos.program:topology"
    stores: ClassVar[tuple[str, ...]] = (program.TALLY_STORE, program.GROUP_STORE)
    numbering: ClassVar[Numbering] = Numbering(program.KEYS)
    topic_config: ClassVar[Mapping[str, str]] = {}
    #: The topics that the checker judges transaction by transaction.
    places: ClassVar[Places] = PLACES

    def __init__(self, setting: Setting, directory: Path) -> None:
        super().__init__(setting, directory)
        self.ledger = Ledger(setting.judged_as, self.places.groups)
        self.stuck = Stuck(setting.budget_seconds, time.monotonic)

    @property
    @override
    def topics(self) -> Mapping[str, Mapping[str, str]]:
        return dict.fromkeys(self.followed, self.topic_config)

    @property
    @override
    def followed(self) -> tuple[str, ...]:
        return (program.NUMBERS, program.COPIES, program.TALLIES, program.GROUP_TALLIES)

    @property
    @override
    def moving(self) -> tuple[str, ...]:
        return (program.COPIES, program.GROUP_TALLIES)

    @override
    def settings(self, host: int) -> Mapping[str, object]:
        return {"isolation.level": "read_uncommitted"} if program.Fault.UNCOMMITTED in self.setting.fault else {}

    @override
    def start(self, bootstrap_servers: str) -> None:
        self._feeder = NumberFeeder(bootstrap_servers, program.NUMBERS, self.numbering, self.setting.seed)
        self._feeder.start()

    @override
    def see(self, record: Sight) -> None:
        key, value = record.name, record.content
        match record.topic:
            case program.NUMBERS:
                self.ledger.see_input(key, value)
                self.stuck.came_in(key, value["n"])
            case program.COPIES:
                self.ledger.see_copy(key, value)
                self.stuck.came_out(key, value["n"])
            case program.TALLIES:
                self.ledger.see_tally(key, value)
            case program.GROUP_TALLIES:
                self.ledger.see_group_tally(key, value)

    @override
    def healed(self) -> None:
        self.stuck.healed()

    @override
    def finish(self) -> None:
        self._feeder.finish()

    @property
    @override
    def aborted(self) -> int:
        return self._feeder.aborted

    @override
    def sent(self) -> int:
        return self.ledger.sent()

    @override
    def copied(self) -> int:
        return self.ledger.copied()

    @override
    def complete(self) -> bool:
        return self.ledger.sent() == self._feeder.sent() and self.ledger.complete()

    @override
    def missing(self) -> str:
        ledger = self.ledger
        return f": {self._feeder.sent()} written, {ledger.sent()} read, {ledger.lost()} without a copy"

    @override
    def verdict(self, bootstrap_servers: str) -> Verdict:
        return self.ledger.verdict(
            read_table(bootstrap_servers, self.places.tally_changelog),
            read_table(bootstrap_servers, self.places.group_changelog),
        )

    @override
    def examine(self, bootstrap_servers: str, reader: Reader, dropped: Sequence[DroppedMarkers]) -> Excuse:
        """With at-least-once, only the feeder's transactions exist."""
        if self.setting.exact or dropped:
            self._transactions, self.ledger.excuse = audit(bootstrap_servers, self.places, reader.offsets, dropped)
        return self.ledger.excuse

    @override
    def reports(self, bootstrap_servers: str) -> list[Report]:
        stuck = self.stuck.report(self.ledger.excuse.numbers)
        return [stuck, self._transactions] if self.setting.exact else [stuck]


class HotKeys(Numbers):
    """Nine of ten records have one key, so one task has nearly all of the work, and one group too."""

    name: ClassVar[str] = "hot-keys"
    numbering: ClassVar[Numbering] = Numbering(program.KEYS, hot=0.9)
    steady: ClassVar[bool] = False


class ManyKeys(Numbers):
    """A million keys, each with a record before the first fault: state that takes long to restore."""

    name: ClassVar[str] = "many-keys"
    numbering: ClassVar[Numbering] = Numbering(1_000_000, filled=True)
    places: ClassVar[Places] = replace(PLACES, groups=100_000)
    restore_seconds: ClassVar[float] = 60.0

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        return {program.GROUPS_VARIABLE: str(self.places.groups)}


def _slow(rng: Random) -> Mapping[str, Any]:
    return {"sleep": round(rng.uniform(0, program.slowest_seconds()), 3)} if rng.random() < SLOW_SHARE else {}


#: Share of the records: a task then spends about a third of its time in them.
SLOW_SHARE = 1 / 500


class SlowFunction(Numbers):
    """Some records take up to 5 s ($CHAOS_SLOWEST_SECONDS): longer than a session of 4 s, nearly as long as the
    transaction timeout (6 s). With the defaults of 45 s and 10 s this corresponds to records of up to 50 s; for 150 s
    set the variable, and timeouts that allow them.
    """

    name: ClassVar[str] = "slow-function"
    topology: ClassVar[str] = "tests.chaos.program:slow"
    numbering: ClassVar[Numbering] = Numbering(program.KEYS, extras=_slow)


def _answered(rng: Random) -> Mapping[str, Any]:
    return {"answer": round(rng.expovariate(1 / ANSWER_SECONDS), 3), "refused": rng.random() < REFUSED_SHARE}


#: Mean response time, and the share of records that are refused the first time.
ANSWER_SECONDS, REFUSED_SHARE = 0.05, 0.05


class AsyncFunctions(Numbers):
    """A service is called for each record by ``map_values_async(ordered_by="key")``: about 10 calls are in flight at
    any time, and records of other keys overtake those with late responses.
    """

    name: ClassVar[str] = "async-functions"
    topology: ClassVar[str] = "tests.chaos.program:asking"
    numbering: ClassVar[Numbering] = Numbering(program.KEYS, extras=_answered)
    places: ClassVar[Places] = replace(PLACES, by_key=True)


def _large(rng: Random) -> Mapping[str, Any]:
    size = rng.choice((9_900_000, 5_000_000, 1_100_000)) if rng.random() < LARGE_SHARE else rng.randint(0, 2_000)
    return {"size": size, "pad": program.padding(size)}


#: Of the records.
LARGE_SHARE = 1 / 200
#: A record of 10 MB with the overhead of its batch.
LARGE_BYTES = "12582912"


class LargeRecords(Numbers):
    """Records of up to 10 MB: read, copied, sent through a repartition topic, and kept in a store with a changelog."""

    name: ClassVar[str] = "large-records"
    topology: ClassVar[str] = "tests.chaos.program:large"
    numbering: ClassVar[Numbering] = Numbering(program.KEYS, batch=8, extras=_large)
    topic_config: ClassVar[Mapping[str, str]] = {"max.message.bytes": LARGE_BYTES}

    def __init__(self, setting: Setting, directory: Path) -> None:
        super().__init__(setting, directory)
        self._spoiled: list[str] = []
        self._copied = 0

    @override
    def settings(self, host: int) -> Mapping[str, object]:
        size = int(LARGE_BYTES)
        return {
            "topic.max.message.bytes": size,
            "producer.message.max.bytes": size,
            "consumer.max.partition.fetch.bytes": size,
            "restore.consumer.max.partition.fetch.bytes": size,
        }

    @override
    def see(self, record: Sight) -> None:
        """A copy must have the padding of its record."""
        super().see(record)
        if record.topic == program.COPIES:
            self._copied += 1
            value = record.content
            if not _is_whole(value, value["n"]):
                self._spoiled.append(f"spoiled: the copy of number {value['n']} of {record.name} has another padding")

    @override
    def reports(self, bootstrap_servers: str) -> list[Report]:
        """The changelog of the store must have the complete last record of each key."""
        table = read_table(bootstrap_servers, f"{program.APPLICATION_ID}-{program.LAST_STORE}-changelog")
        spoiled = [
            f"spoiled: the store has {str(table.get(key))[:60]} as the last record of {key}, number {number}"
            for key, number in self.ledger.expected.items()
            if not _is_whole(table.get(key), number)
        ]
        paddings = Report.of("paddings", self._copied, "copies", [*self._spoiled, *spoiled])
        return [*super().reports(bootstrap_servers), paddings]


def _is_whole(value: Mapping[str, Any] | None, number: int) -> bool:
    return value is not None and value["n"] == number and value["pad"] == program.padding(value["size"])


class Queried(Numbers):
    """Every host serves HTTP, and a client reads tallies continuously, also while hosts are killed."""

    name: ClassVar[str] = "queries"

    def __init__(self, setting: Setting, directory: Path) -> None:
        super().__init__(setting, directory)
        self._ports = [free_port() for _ in range(setting.hosts)]
        self._queries = Queries(setting.exact)
        self._client = Client(
            self._ports,
            program.TALLY_STORE,
            [f"k{number}" for number in range(program.KEYS)],
            lambda key: int(self.ledger.tallies.get(key, {"last": 0})["last"]),
            self._queries,
            setting.seed,
        )

    @override
    def settings(self, host: int) -> Mapping[str, object]:
        port = self._ports[host]
        return {"penstock.http.port": port, "application.server": f"127.0.0.1:{port}"}

    @override
    def start(self, bootstrap_servers: str) -> None:
        super().start(bootstrap_servers)
        self._client.start()

    @override
    def verdict(self, bootstrap_servers: str) -> Verdict:
        """Stop the client, which has read until now, and return the verdict."""
        self._client.end()
        return super().verdict(bootstrap_servers)

    @override
    def reports(self, bootstrap_servers: str) -> list[Report]:
        return [*super().reports(bootstrap_servers), self._queries.report(self.ledger.expected)]
