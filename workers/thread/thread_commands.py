"""Executes the supervisor's commands in a stream thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.topology.graph.topology import Topology

from ..control.messages import (
    Command,
    DescribeTopology,
    Measure,
    Pause,
    Query,
    QueryResult,
    ReadStore,
    Resume,
    Shutdown,
    ShutDownApplication,
    TakeSnapshot,
    ThreadControl,
)
from ..group.source_topics import BuiltTopologies
from ..group.topic_names import TopicNames
from ..queries.store_queries import answer
from ..queries.store_reads import StoreReader
from ..queries.store_snapshots import take
from ..queries.topology_json import topology_json
from .measurement import Measurement

if TYPE_CHECKING:
    from .stream_thread import StreamThread


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers queries. reader: for queries with keys as text, e.g. over HTTP."""

    reader: StoreReader
    measurement: Measurement
    topology: Topology
    topologies: BuiltTopologies
    topics: TopicNames

    def describe_topology(self) -> bytes:
        """Return sub-topologies, nodes and stores as JSON."""
        return topology_json(self.topology, self.topologies, self.topics)


class ThreadCommands:
    """Polled once in each iteration, so that a command takes effect between two batches, never within one."""

    def __init__(self, control: ThreadControl, thread: StreamThread, answers: Answers) -> None:
        self._control = control
        self._thread = thread
        self._answers = answers

    def poll(self) -> None:
        """Execute the commands that have arrived."""
        for command in self._control.poll_commands():
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Shutdown():
                self._thread.shutdown(command.leave_group)
            case Pause():
                self._thread.paused = True
            case Resume():
                self._thread.paused = False
            case ShutDownApplication():
                self._thread.group.request_application_shutdown()
            case Query():
                self._control.report(answer(command, self._thread.task_manager))
            case Measure():
                self._control.report(QueryResult(command.id, self._answers.measurement.groups()))
            case ReadStore():
                self._control.report(QueryResult(command.id, self._answers.reader.read(command)))
            case TakeSnapshot():
                self._control.report(take(command, self._thread.task_manager))
            case DescribeTopology():
                self._control.report(QueryResult(command.id, self._answers.describe_topology()))
