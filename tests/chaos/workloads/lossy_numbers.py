"""Numbered records where loss is legal: new leaders lack acknowledged records, of inputs and outputs alike.

What must still hold: the application continues by itself, and records written after the cluster has recovered are
output. The verdict names the lost records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from typing_extensions import override

from tests.chaos import program
from tests.chaos.checker import Ledger, Reader, Sight, Verdict, read_all
from tests.chaos.checkers import Report
from tests.chaos.feeder import InputWriter, NumberFeeder, PlainWriter
from tests.chaos.workloads.numbers import Numbers
from tests.chaos.workloads.workload import Setting

#: Timeout of a response; librdkafka waits for leaders within it.
REQUEST_SECONDS = 2.0


class PlainFeeder(NumberFeeder):
    """Writes without transactions."""

    @override
    def new_writer(self, bootstrap_servers: str) -> InputWriter:
        return PlainWriter(bootstrap_servers)


class LossyNumbers(Numbers):
    """The records are read when no more elections can lose them."""

    def __init__(self, setting: Setting, directory: Path) -> None:
        super().__init__(setting, directory)
        self.ledger = LossLedger(setting.judged_as, program.GROUPS)

    @override
    def start(self, bootstrap_servers: str) -> None:
        self._feeder = PlainFeeder(bootstrap_servers, program.NUMBERS, self.numbering, self.setting.seed)
        self._feeder.start()

    @override
    def reader(self, bootstrap_servers: str) -> Reader:
        """Positions that a consumer remembers may no longer exist."""
        self._address = bootstrap_servers
        return Ends(bootstrap_servers, dict.fromkeys(self.followed, self.partitions))

    def complete(self) -> bool:
        """Read everything, and return True if the last record of each key has an output."""
        for record in read_all(self._address, self.followed):
            self.see(record)
        return self.ledger.complete()

    def reports(self, bootstrap_servers: str) -> list[Report]:
        """Return no further reports: offsets and transactions may be lost too."""
        return []


class Ends:
    """Replaces a TopicReader while logs are truncated. It only reads end offsets, and no records."""

    def __init__(self, bootstrap_servers: str, topics: Mapping[str, int]) -> None:
        self.seen: dict[tuple[str, int], int] = {(t, n): 0 for t, count in topics.items() for n in range(count)}
        self.offsets: dict[tuple[str, int], list[int]] = {}
        self._address = bootstrap_servers
        self._client = self._new_client()

    def _new_client(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._address, "log_level": 2})

    def poll(self, seconds: float) -> list[Sight]:
        """Request the end offsets again; those that cannot be read keep their value.

        librdkafka continues to ask dead leaders, and returns -1001 without an error; a new client does not.
        """
        are_known = True
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        partitions = {TopicPartition(*partition): latest for partition in self.seen}
        asked = self._client.list_offsets(partitions, request_timeout=REQUEST_SECONDS)
        for partition, answer in asked.items():
            try:
                offset = answer.result().offset
            except KafkaException:
                offset = OFFSET_INVALID  # it has no leader now
            if offset == OFFSET_INVALID:
                are_known = False
            else:
                self.seen[partition.topic, partition.partition] = offset
        if not are_known:
            self._client = self._new_client()
        time.sleep(seconds)  # the interval of a reader without records
        return []

    def renew(self) -> None:
        """Continue with a new client."""
        self._client = self._new_client()

    def read_to_end(self) -> list[Sight]:
        """Return nothing: the workload reads by itself."""
        return []

    def close(self) -> None:
        """Do nothing: the client needs no close."""


@dataclass(frozen=True)
class LossVerdict(Verdict):
    """lost_inputs, missing: by key, the numbers that the input has lost, and its remaining ones without a copy."""

    lost_inputs: Mapping[str, tuple[int, ...]]
    missing: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        lines = [
            *(f"gone from the input: {key}: {ranges(numbers)}" for key, numbers in sorted(self.lost_inputs.items())),
            *(f"without a copy: {key}: {ranges(numbers)}" for key, numbers in sorted(self.missing.items())),
        ]
        gone = sum(map(len, self.lost_inputs.values()))
        copies = sum(map(len, self.missing.values()))
        summary = f"{gone} inputs gone and {copies} without a copy, both legal; {self.lost} of the last records lost"
        return "\n".join([*lines, summary])


class LossLedger(Ledger):
    """The final contents of the topics; the input may have gaps."""

    def __init__(self, guarantee: str, groups: int) -> None:
        super().__init__(guarantee, groups)
        self._inputs: dict[str, set[int]] = {}
        self._out: dict[str, set[int]] = {}

    def see_input(self, key: str, value: Any) -> None:
        """Take in a record of the input."""
        self._inputs.setdefault(key, set()).add(value["n"])
        self.expected[key] = max(self._inputs[key])

    def see_copy(self, key: str, value: Any) -> None:
        """Take in an output."""
        self._out.setdefault(key, set()).add(value["n"])

    def lost(self) -> int:
        """Return the number of keys whose last record, written to a healthy cluster, has no output."""
        return sum(last not in self._out.get(key, set()) for key, last in self.expected.items())

    def complete(self) -> bool:
        """Return True if the last record of each key has an output."""
        return self.lost() == 0

    def verdict(self, tally_changelog: dict[str, Any], group_changelog: dict[str, Any]) -> Verdict:
        """Return the verdict. Tallies count the remaining records only, so they are not judged."""
        gone = {k: tuple(sorted(set(range(1, n + 1)) - self._inputs[k])) for k, n in self.expected.items()}
        missing = {key: tuple(sorted(numbers - self._out.get(key, set()))) for key, numbers in self._inputs.items()}
        only = ({key: numbers for key, numbers in table.items() if numbers} for table in (gone, missing))
        return LossVerdict(self.guarantee, self.lost(), 0, 0, 0, (), 0, *only)


def ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers as 1-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
