"""What the supervisor's commands do to a stream thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from ..queries.store_queries import answer
from ..queries.store_snapshots import take

if TYPE_CHECKING:
    from .stream_thread import StreamThread


class ThreadCommands:
    """Polled once in each iteration, so that a command takes effect between two batches, never within one."""

    def __init__(self, control: ThreadControl, thread: StreamThread) -> None:
        self._control = control
        self._thread = thread

    def poll(self) -> None:
        """Carry out the commands that have arrived."""
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
                self._thread.request_application_shutdown()
            case Query():
                self._control.report(answer(command, self._thread.task_manager))
            case Measure():
                self._control.report(QueryResult(command.id, self._thread.measure()))
            case ReadStore():
                self._control.report(QueryResult(command.id, self._thread.store_reader.read(command)))
            case TakeSnapshot():
                self._control.report(take(command, self._thread.task_manager))
            case DescribeTopology():
                self._control.report(QueryResult(command.id, self._thread.describe_topology()))
