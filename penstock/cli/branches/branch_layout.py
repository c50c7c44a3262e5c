"""What a branch consists of: the topics of an application, and their names in the branch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.cli.progress import Progress
from penstock.cli.running_application import NotRunningError
from penstock.topology.errors import StreamsError, TopologyError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.control.messages import TopologyTopics

#: How long the group may take to assign all tasks after a start, in seconds: some heartbeats, and a restore.
ASSIGNMENT_SECONDS = 30.0
#: Between two looks at the tasks, in seconds.
LOOK_SECONDS = 1.0

T = TypeVar("T")


class LateError(StreamsError):
    """A limit that the user has set is over: to wait for tasks would exceed it."""


def once_assigned(look: Callable[[], T], progress: Progress) -> T:
    """Return what look() returns; it raises StreamsError while tasks are missing.

    Right after a start the group may still assign tasks, so its error is raised after ASSIGNMENT_SECONDS only.
    """
    deadline, pace = time.monotonic() + ASSIGNMENT_SECONDS, threading.Event()
    while True:
        try:
            return look()
        except (NotRunningError, LateError):
            raise
        except StreamsError:
            if time.monotonic() > deadline:
                raise
        progress("Waiting until all tasks have been assigned", 0, 1)
        pace.wait(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class BranchLayout:
    """An application, and a branch of it. tasks: the active ones that hold; topics: by number of sub-topology."""

    application_id: str
    name: str
    sink_prefix: str
    tasks: frozenset[TaskId]
    topics: Mapping[int, TopologyTopics]

    @classmethod
    def of(cls, application_id: str, name: str, sink_prefix: str, held: Mapping[str, Any]) -> BranchLayout:
        """Return the layout in the answer of Administration.hold."""
        tasks = frozenset(map(TaskId.parse, held["tasks"]))
        topics = {
            int(number): TopologyTopics(**{kind: tuple(names) for kind, names in found.items()})
            for number, found in held["topics"].items()
        }
        return cls(application_id, name, sink_prefix, tasks, topics)

    def _all(self, kind: str) -> set[str]:
        return {topic for found in self.topics.values() for topic in getattr(found, kind)}

    @property
    def sources(self) -> set[str]:
        """The topics that tasks read."""
        return self._all("sources")

    @property
    def repartition(self) -> set[str]:
        """The internal ones among the sources."""
        return self._all("repartition")

    @property
    def changelogs(self) -> set[str]:
        """The changelogs, without source topics that serve as such."""
        return self._all("changelogs")

    @property
    def internal(self) -> set[str]:
        """The topics whose names begin with the application.id."""
        return self.repartition | self.changelogs

    @property
    def sinks(self) -> set[str]:
        """The output topics with fixed names."""
        return self._all("sinks")

    def renamed(self, topic: str) -> str:
        """Return the branch's name of a topic; a user's input topic keeps its own."""
        return self.name + topic.removeprefix(self.application_id) if topic in self.internal else topic

    def renamed_sink(self, topic: str) -> str:
        """Return the branch's name of an output topic."""
        return self.sink_prefix + topic

    def partitions(self, topics: Iterable[str], counts: Mapping[str, int]) -> list[TopicPartition]:
        """Return all partitions of topics. counts: of each topic."""
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(counts[topic])]

    def check(self, counts: Mapping[str, int]) -> None:
        """Raise TopologyError or StreamsError if no branch can be made of this application. counts: of its topics."""
        outside = self._all("outside")
        if outside:
            raise TopologyError(
                f"{self.application_id} cannot be branched: {', '.join(sorted(outside))} writes outside of Kafka. Both "
                "applications would write the same rows"
            )
        both = self.sinks & self.sources
        if both:
            raise TopologyError(
                f"{self.application_id} cannot be branched: it writes to {', '.join(sorted(both))} and reads it. The "
                "branch would read the original's records there. Use repartition() for topics between its own parts"
            )
        self.check_tasks(counts)

    def check_tasks(self, counts: Mapping[str, int]) -> None:
        """Raise StreamsError if a task is not among those that hold. counts: of the topics that are read."""
        missing = self._expected(counts) - self.tasks
        if missing:
            raise StreamsError(
                f"These tasks of {self.application_id} run neither on this host nor on one that it can ask: "
                f"{', '.join(map(str, sorted(missing)))}. If the application has other hosts, set application.server, "
                "penstock.http.port and penstock.http.token on all of them; otherwise wait until all tasks run"
            )

    def _expected(self, counts: Mapping[str, int]) -> set[TaskId]:
        return {
            TaskId(number, partition)
            for number, found in self.topics.items()
            for partition in range(max((counts.get(topic, 0) for topic in found.sources), default=0))
        }
