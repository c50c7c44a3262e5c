"""What a run needs to know of its workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.chaos.checker import EXACTLY_ONCE, Reader, Sight, TopicReader, Verdict
from tests.chaos.checkers import Report

#: Two sessions, a transaction that times out and the coordinator's look for it, a restart, a restore, on a machine that
#: has much else to do.
BUDGET_SECONDS = 90.0


@dataclass(frozen=True)
class Setting:
    """How a workload is run. judged_as: the guarantee that it is held to; fault: what its program does wrong.

    budget_seconds: how long a record may take from its arrival, or the healing of the last fault, until it is out.
    """

    seed: int
    hosts: int
    guarantee: str = EXACTLY_ONCE
    judged_as: str = EXACTLY_ONCE
    fault: str = ""
    budget_seconds: float = BUDGET_SECONDS

    @property
    def exact(self) -> bool:
        """Whether it is held to exactly-once."""
        return self.judged_as == EXACTLY_ONCE


class Workload(ABC):
    """One run of a workload. The order of calls: prepare, start, see …, healed, finish, see …, verdict, reports."""

    name: ClassVar[str]
    #: What `penstock run` is given.
    topology: ClassVar[str]
    #: Whether every partition of ``moving`` gets records all the time; else there is always one that does.
    steady: ClassVar[bool] = True
    #: How long its state takes to restore, on a machine that has much else to do.
    restore_seconds: ClassVar[float] = 0.0

    def __init__(self, setting: Setting, directory: Path) -> None:
        self.setting = setting
        #: Its own, for files; it exists.
        self.directory = directory

    @property
    @abstractmethod
    def topics(self) -> Mapping[str, Mapping[str, str]]:
        """The topics to create, with their configuration."""

    @property
    def partitions(self) -> int:
        """How many partitions each topic has."""
        return 4

    @property
    @abstractmethod
    def followed(self) -> tuple[str, ...]:
        """The topics whose records ``see`` is to be given."""

    @property
    @abstractmethod
    def moving(self) -> tuple[str, ...]:
        """The outputs that get records all the time as long as the application is well."""

    def progress(self, seen: Mapping[tuple[str, int], int]) -> dict[str, int]:
        """Return, by name, counts that all grow as long as the application is well.

        seen: how many records each partition has.
        """
        moving = {partition: count for partition, count in seen.items() if partition[0] in self.moving}
        if not self.steady:
            return {"any output": sum(moving.values())}
        return {f"{topic}-{number}": count for (topic, number), count in moving.items()}

    def reader(self, bootstrap_servers: str) -> Reader:
        """Return what ``see`` is given the records of."""
        return TopicReader(bootstrap_servers, self.followed)

    @property
    def environment(self) -> Mapping[str, str]:
        """What hosts get beside the environment of the run."""
        return {}

    def settings(self, host: int) -> Mapping[str, object]:
        """Return a host's settings, beside those of every run."""
        return {}

    def prepare(self, bootstrap_servers: str) -> None:  # noqa: B027  most have nothing to prepare
        """Write what has to be there before hosts start."""

    @abstractmethod
    def start(self, bootstrap_servers: str) -> None:
        """Let the input flow."""

    @abstractmethod
    def see(self, record: Sight) -> None:
        """Take in a record of the topics that are followed."""

    def healed(self) -> None:  # noqa: B027  not everyone asks
        """Note that the last fault is healed."""

    @abstractmethod
    def finish(self) -> None:
        """End the input; raises what went wrong with it."""

    @property
    @abstractmethod
    def aborted(self) -> int:
        """How many records were in aborted transactions."""

    @abstractmethod
    def sent(self) -> int:
        """Return how many records were seen in the input."""

    @abstractmethod
    def copied(self) -> int:
        """Return how many of them have come out, for the progress line."""

    @abstractmethod
    def complete(self) -> bool:
        """Return whether everything has come out, after ``finish``."""

    @abstractmethod
    def verdict(self, bootstrap_servers: str) -> Verdict:
        """Judge the records, when no host runs any more."""

    def missing(self) -> str:
        """Return what is not complete yet, for a line of the run; it begins with a colon if it is not empty."""
        return ""

    def reports(self, bootstrap_servers: str, reader: Reader) -> list[Report]:
        """Judge the rest. reader: what has given the records to ``see``, from their beginning to their end."""
        return []
