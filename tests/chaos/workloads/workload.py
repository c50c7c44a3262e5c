"""The interface between a run and its workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.chaos.checker import EXACTLY_ONCE, Reader, Sight, TopicReader, Verdict
from tests.chaos.checkers import Report
from tests.chaos.checkers.dropped_markers import DroppedMarkers
from tests.chaos.checkers.excuse import Excuse

#: Two sessions, a transaction timeout and the coordinator's check for it, a restart, and a restore, on a busy machine.
BUDGET_SECONDS = 90.0


@dataclass(frozen=True)
class Setting:
    """How a workload is run. judged_as: the guarantee that is checked; fault: the planted fault of its program.

    budget_seconds: the maximum time of a record from its arrival, or from the end of the last fault, to its output.
    """

    seed: int
    hosts: int
    guarantee: str = EXACTLY_ONCE
    judged_as: str = EXACTLY_ONCE
    fault: str = ""
    budget_seconds: float = BUDGET_SECONDS

    @property
    def exact(self) -> bool:
        """True if exactly-once is checked."""
        return self.judged_as == EXACTLY_ONCE


class Workload(ABC):
    """One run of a workload.

    The order of calls: prepare, start, see …, healed, finish, see …, examine, verdict, reports.
    """

    name: ClassVar[str]
    #: The argument of `penstock run`.
    topology: ClassVar[str]
    #: Whether every partition of ``moving`` gets records continuously; otherwise only some partition does.
    steady: ClassVar[bool] = True
    #: Its stores whose keys are text and whose values are JSON.
    stores: ClassVar[tuple[str, ...]] = ()
    #: How long its state takes to restore on a busy machine.
    restore_seconds: ClassVar[float] = 0.0

    def __init__(self, setting: Setting, directory: Path) -> None:
        self.setting = setting
        #: An existing directory for its files.
        self.directory = directory

    @property
    @abstractmethod
    def topics(self) -> Mapping[str, Mapping[str, str]]:
        """The topics to create, with their configuration."""

    @property
    def partitions(self) -> int:
        """The number of partitions of each topic."""
        return 4

    @property
    @abstractmethod
    def followed(self) -> tuple[str, ...]:
        """The topics whose records are passed to ``see``."""

    @property
    @abstractmethod
    def moving(self) -> tuple[str, ...]:
        """The outputs that get records continuously while the application is healthy."""

    def progress(self, seen: Mapping[tuple[str, int], int]) -> dict[str, int]:
        """Return counts by name that all grow while the application is healthy.

        seen: the number of records by partition.
        """
        moving = {partition: count for partition, count in seen.items() if partition[0] in self.moving}
        if not self.steady:
            return {"any output": sum(moving.values())}
        return {f"{topic}-{number}": count for (topic, number), count in moving.items()}

    def reader(self, bootstrap_servers: str) -> Reader:
        """Return the reader of the records for ``see``."""
        return TopicReader(bootstrap_servers, self.followed)

    @property
    def environment(self) -> Mapping[str, str]:
        """Additions to the environment of hosts."""
        return {}

    def settings(self, host: int) -> Mapping[str, object]:
        """Return a host's settings, beside those of every run."""
        return {}

    def prepare(self, bootstrap_servers: str) -> None:  # noqa: B027  most have nothing to prepare
        """Write the records that must exist before hosts start."""

    @abstractmethod
    def start(self, bootstrap_servers: str) -> None:
        """Start the input."""

    @abstractmethod
    def see(self, record: Sight) -> None:
        """Count a record of a followed topic."""

    def healed(self) -> None:  # noqa: B027  not everyone asks
        """Note that the last fault is healed."""

    @abstractmethod
    def finish(self) -> None:
        """End the input; raises its error if there was one."""

    @property
    @abstractmethod
    def aborted(self) -> int:
        """The number of records in aborted transactions."""

    @abstractmethod
    def sent(self) -> int:
        """Return the number of records seen in the input."""

    @abstractmethod
    def copied(self) -> int:
        """Return the number of them with an output, for the progress line."""

    @abstractmethod
    def complete(self) -> bool:
        """Return True if all outputs have arrived, after ``finish``."""

    def examine(self, bootstrap_servers: str, reader: Reader, dropped: Sequence[DroppedMarkers]) -> Excuse:
        """Return the violations that are not judged because brokers dropped these markers, when no host runs any more.

        reader: has returned the records for ``see``, from their beginning to their end.
        """
        return Excuse()

    @abstractmethod
    def verdict(self, bootstrap_servers: str) -> Verdict:
        """Return the verdict on the records."""

    def missing(self) -> str:
        """Return what is still missing, for a line of the run; it begins with a colon if it is not empty."""
        return ""

    def reports(self, bootstrap_servers: str) -> list[Report]:
        """Return the reports of the other checkers."""
        return []
